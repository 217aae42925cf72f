"""Files of public data sets: where they lie, what they hold, and what to do about those that are not there."""

import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmfl.data.remote import DownloadError, RemoteFile, download, fault, opened
from mmfl.errors import UserError

__all__ = [
    "RemoteFile",
    "arrays",
    "cache_folder",
    "fetch",
    "find",
    "find_all",
    "folder_of",
    "missing",
    "opened",
    "reading",
    "verify",
]


def cache_folder() -> Path:
    """Where this package keeps what it can get again: `MMFL_CACHE`, or `mmfl` in the user's cache folder."""
    if folder := os.environ.get("MMFL_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmfl"


def folder_of(source: str, folder: str | Path | None = None) -> Path:
    """The folder given, else the source's own folder in `MMFL_DATA`, else the one in the cache folder."""
    if folder is not None:
        return Path(folder).expanduser()
    return (_data_folder() or cache_folder() / "data") / source


def find(folder: Path, *names: str) -> Path | None:
    """The first of these files or folders that is there; for a source's folder in `MMFL_DATA`, also beside it."""
    places = [folder, folder.parent] if folder.parent == _data_folder() else [folder]
    return next((path for place in places for name in names if (path := place / name).exists()), None)


def find_all(folder: Path, choices: Sequence[Sequence[str]]) -> list[Path] | None:
    """One path for each of several choices of names, or None unless all are there."""
    found = [path for names in choices if (path := find(folder, *names))]
    return found if len(found) == len(choices) else None


def _data_folder() -> Path | None:
    folder = os.environ.get("MMFL_DATA")
    return Path(folder).expanduser() if folder else None


def missing(source: str, folder: Path, what: str) -> UserError:
    """The error for data that cannot be downloaded: what to put where."""
    return UserError(
        f"data '{source}': not found in {folder}.\n"
        f"Put {what} there, or set MMFL_DATA to a folder that holds it in a sub-folder '{source}'."
    )


def fetch(source: str, folder: Path, files: Sequence[RemoteFile]) -> list[Path]:
    """The files in the folder, verified; those that are not there are downloaded into it first."""
    found = [find(folder, *file.names) for file in files]
    for path, file in zip(found, files, strict=True):
        if path is not None:
            verify(source, folder, path, file)
    if wanted := [file for path, file in zip(found, files, strict=True) if path is None]:
        try:
            download(folder, wanted)
        except (DownloadError, OSError) as error:
            reason = error if isinstance(error, DownloadError) else f"cannot write to {folder} ({error})"
            names = ", ".join(file.name for file in wanted)
            origin = " and ".join(dict.fromkeys(file.url.rpartition("/")[0] for file in wanted))
            raise UserError(f"data '{source}': {reason}.\nPut {names} from {origin} into {folder}.") from None
    return [path or folder / file.name for path, file in zip(found, files, strict=True)]


def verify(source: str, folder: Path, path: Path, file: RemoteFile) -> Path:
    """Refuses a file that is not the published one, with the reason; it is left where it is."""
    with reading(source, path):
        reason = fault(path, file)
    if reason is None:
        return path
    raise UserError(
        f"data '{source}': {path} is not the published file: {reason}.\n"
        f"Remove it to have it downloaded, or put the one from {file.url} into {folder}."
    )


@contextmanager
def reading(source: str, path: Path | zipfile.Path) -> Iterator[None]:
    """Turns what goes wrong while a file is read (damage, permissions) into an error that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UserError(f"data '{source}': {path} is damaged or cannot be read ({error}).") from None


def arrays(source: str, path: Path, *names: str) -> list[NDArray[Any]]:
    """The named arrays of an `.npz` file."""
    with reading(source, path), path.open("rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise UserError(f"data '{source}': {path} is not an .npz file, or was cut short.")
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as file:
            if lacking := [name for name in names if name not in file]:
                raise UserError(
                    f"data '{source}': {path} has no {', '.join(lacking)}; it holds {', '.join(file) or 'nothing'}."
                )
            try:
                found = [file[name] for name in names]
            except ValueError as error:
                raise UserError(f"data '{source}': {path} holds something else than plain arrays ({error}).") from None
    if not all(isinstance(array, np.ndarray) for array in found):
        raise UserError(f"data '{source}': {path} is not an .npz file.")
    return found
