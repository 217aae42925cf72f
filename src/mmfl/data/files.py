"""Files of public data sets: finding, reading, verifying and downloading them."""

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

from mmfl.data.remote import DownloadError, RemoteFile, download, mismatch
from mmfl.errors import UserError


def cache_folder() -> Path:
    """The folder for what can be downloaded or made again: `MMFL_CACHE`, or `mmfl` in the user's cache folder."""
    if folder := os.environ.get("MMFL_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mmfl"


def folder_of(source: str, folder: str | Path | None = None) -> Path:
    """The folder of a source: `folder`, else its folder in `MMFL_DATA`, else the one in the cache folder."""
    if folder is not None:
        return Path(folder).expanduser()
    return (_data_folder() or cache_folder() / "data") / source


def find(folder: Path, *names: str) -> Path | None:
    """The first of these files or folders that exists; for a source's folder in `MMFL_DATA`, also next to it."""
    places = [folder, folder.parent] if folder.parent == _data_folder() else [folder]
    return next((path for place in places for name in names if (path := place / name).exists()), None)


def find_all(folder: Path, choices: Sequence[Sequence[str]]) -> list[Path] | None:
    """For each choice of names the path of a file that exists, or None unless all have one."""
    found = [path for names in choices if (path := find(folder, *names))]
    return found if len(found) == len(choices) else None


def _data_folder() -> Path | None:
    folder = os.environ.get("MMFL_DATA")
    return Path(folder).expanduser() if folder else None


def not_found_error(source: str, folder: Path, what: str) -> UserError:
    """The error for missing data that cannot be downloaded; it says which files to put where."""
    return UserError(
        f"data '{source}': not found in {folder}.\n"
        f"Put {what} there, or set MMFL_DATA to a folder that holds it in a sub-folder '{source}'."
    )


def fetch(source: str, folder: Path, files: Sequence[RemoteFile]) -> list[Path]:
    """The paths of these files in the folder, verified; missing files are downloaded first."""
    found = {file: find(folder, *file.names) for file in files}
    for file, path in found.items():
        if path is not None:
            _verify(source, folder, path, file)
    if to_download := [file for file, path in found.items() if path is None]:
        try:
            download(folder, to_download)
        except (DownloadError, OSError) as error:
            reason = error if isinstance(error, DownloadError) else f"cannot write to {folder} ({error})"
            names = ", ".join(file.name for file in to_download)
            origin = " and ".join(dict.fromkeys(file.url.rpartition("/")[0] for file in to_download))
            raise UserError(f"data '{source}': {reason}.\nPut {names} from {origin} into {folder}.") from None
    return [path or folder / file.name for file, path in found.items()]


def _verify(source: str, folder: Path, path: Path, file: RemoteFile) -> None:
    with reading(source, path):
        reason = mismatch(path, file)
    if reason is not None:
        raise UserError(
            f"data '{source}': {path} is not the published file: {reason}.\n"
            f"Remove it to have it downloaded, or put the one from {file.url} into {folder}."
        )


@contextmanager
def reading(source: str, path: Path | zipfile.Path) -> Iterator[None]:
    """Converts errors while reading a file (damage, permissions) into a `UserError` that names the file."""
    try:
        yield
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError) as error:
        raise UserError(f"data '{source}': {path} is damaged or cannot be read ({error}).") from None


def arrays(source: str, path: Path, *names: str) -> list[NDArray[Any]]:
    """The named arrays of an `.npz` file."""
    with reading(source, path):
        try:
            with np.load(path, allow_pickle=False) as file:
                held, stored = list(file), {name: file[name] for name in names if name in file}
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"data '{source}': {path} is not an .npz file of plain arrays ({error}).") from None
    if missing := [name for name in names if not isinstance(stored.get(name), np.ndarray)]:
        raise UserError(f"data '{source}': {path} has no array {', '.join(missing)}; it holds {', '.join(held)}.")
    return [stored[name] for name in names]
