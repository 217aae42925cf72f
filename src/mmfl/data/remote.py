"""Published files: verifying and downloading them."""

import gzip
import hashlib
import http.client
import io
import os
import sys
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

if sys.platform != "win32":
    import fcntl

TIMEOUT = 30.0
"""Seconds without data after which a connection counts as broken."""

PAUSES = (1.0, 2.0, 4.0)
"""Seconds between attempts to download."""

_CHUNK = 2**16
_TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class RemoteFile:
    """A file of a public data set: its name in the folder, its official address, and its checksums.

    `sha256` is that of the file itself; `content` is that of its uncompressed content, which also recognises copies
    that were compressed differently or not at all. `also` are other common names of the file.
    """

    name: str
    url: str
    sha256: str | None = None
    size: int | None = None
    content: str | None = None
    also: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names the file may have."""
        return (self.name, *self.also)


class DownloadError(Exception):
    """A download that did not succeed; the message says why."""


class _BrokenError(DownloadError):
    """A download that may succeed when tried again."""


@contextmanager
def open_unpacked(path: Path | zipfile.Path) -> Iterator[IO[bytes]]:
    """Opens a file, or a file in a zip archive; decompresses it if it is gzipped, whatever its name is."""
    with cast(io.BufferedReader, path.open("rb")) as stream:
        compressed = stream.peek(2)[:2] == b"\x1f\x8b"
        yield cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if compressed else stream


def mismatch(path: Path, file: RemoteFile) -> str | None:
    """How a file differs from the published one, or None if it does not, as far as its checksums are known."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return f"it has {size:,} bytes instead of {file.size:,}"
    try:
        with path.open("rb") as stream:
            if file.sha256 and (found := _sha256(stream)) != file.sha256:
                return f"its sha256 is {found} instead of {file.sha256}"
        with open_unpacked(path) as stream:
            if file.content and (found := _sha256(stream)) != file.content:
                return f"the sha256 of its content is {found} instead of {file.content}"
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        return f"it cannot be unpacked ({error})"
    return None


def _sha256(stream: Any) -> str:
    return hashlib.file_digest(stream, "sha256").hexdigest()


def download(folder: Path, files: Sequence[RemoteFile]) -> None:
    """Downloads these files into the folder; each gets its final name when it is complete and verified.

    A partial download is in `NAME.part`, where the next attempt or call continues. Raises `DownloadError` for network
    errors and `OSError` if the folder cannot be written.
    """
    if os.environ.get("MMFL_OFFLINE", "0") not in ("", "0"):
        raise DownloadError(f"not found in {folder}, and MMFL_OFFLINE forbids downloading it")
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with _lock(folder), Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        for file in files:
            if not (folder / file.name).exists():
                bar = progress.add_task(file.name, total=file.size)
                _download_file(file, folder / file.name, progress, bar)


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Locks the folder: another process that needs the same files waits until they are complete."""
    if sys.platform == "win32":
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network drives have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _download_file(file: RemoteFile, path: Path, progress: Progress, bar: TaskID) -> None:
    part = path.with_name(f"{path.name}.part")
    continued = part.exists()
    for pause in (*PAUSES, None):
        try:
            _receive(file, part, progress, bar)
            break
        except _BrokenError:
            if pause is None:
                raise
            time.sleep(pause)
    reason = mismatch(part, file)
    if reason is None:
        part.replace(path)
        return
    part.unlink()
    if not continued:
        raise DownloadError(f"{file.url} did not send the published file: {reason}")
    _download_file(file, path, progress, bar)  # the beginning may have been from another version


def _receive(file: RemoteFile, part: Path, progress: Progress, bar: TaskID) -> None:
    """Appends the missing rest to the partial file, or starts again if the server only sends whole files."""
    start = part.stat().st_size if part.exists() else 0
    with _request(file.url, start) as response:
        content_range = response.headers.get("Content-Range", "")
        if content_range == f"bytes */{start}":
            return  # the file was already complete
        resumed = content_range.startswith(f"bytes {start}-")
        if response.status != 200 and not resumed:
            part.unlink(missing_ok=True)
            raise _BrokenError(f"{file.url} sent another part of the file than the one asked for")
        received = start if resumed else 0
        total = file.size if response.length is None else received + response.length
        with part.open("ab" if resumed else "wb") as out:
            for chunk in _chunks(file.url, response):
                out.write(chunk)
                received += len(chunk)
                progress.update(bar, total=total, completed=received)
    if total is not None and received < total:
        raise _BrokenError(f"{file.url} broke off after {received:,} of {total:,} bytes")


def _request(url: str, start: int) -> http.client.HTTPResponse:
    span = {"Range": f"bytes={start}-"} if start else {}
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "mmfl", **span})
        return cast(http.client.HTTPResponse, urllib.request.urlopen(request, timeout=TIMEOUT))
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing at or beyond `start`
            return cast(http.client.HTTPResponse, error)
        kind = _BrokenError if error.code in _TRANSIENT_STATUS else DownloadError
        raise kind(f"{url} answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        kind = _BrokenError if start else DownloadError  # without a network, it is not tried again
        raise kind(f"{url} cannot be reached ({getattr(error, 'reason', error)})") from None


def _chunks(url: str, response: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while chunk := response.read(_CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenError(f"{url} broke off ({error})") from None
