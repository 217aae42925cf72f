"""Files that others may read meanwhile: written whole or not at all, or appended to and read from their end."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_REMEMBERED = 256  # bytes


class TailReader:
    """Reads the lines of a file as they are appended, each once; an incomplete last line is left for the next call.

    The file may also be truncated or rewritten, as by a run that is resumed. Then the bytes that were read last are no
    longer in their place, and the file is read again from its beginning.
    """

    def __init__(self, path: Path):
        self.path = path
        self.offset, self.last = 0, b""

    def new_lines(self) -> tuple[list[bytes], bool]:
        """The lines since the last call, and whether the file was rewritten, so that they replace all earlier ones."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset - len(self.last))
                text = file.read()
                rewritten = not text.startswith(self.last)
                if rewritten:
                    self.offset, self.last = 0, b""
                    file.seek(0)
                    text = file.read()
        except FileNotFoundError:
            rewritten, text = bool(self.offset), b""
            self.offset, self.last = 0, b""
        whole = text[len(self.last) : text.rfind(b"\n") + 1]
        self.offset += len(whole)
        self.last = (self.last + whole)[-_REMEMBERED:]
        return whole.splitlines(), rewritten


def previous(path: Path) -> Path:
    """Where the older half of a bounded file is."""
    return path.with_name(f"{path.name}.1")


def append_bounded(path: Path, text: str, most: int) -> None:
    """Appends to a file; once it has more than `most` bytes it becomes the previous one, in place of the one before."""
    with path.open("a", encoding="utf-8", errors="replace") as file:
        file.write(text)
        full = file.tell() > most
    if full:
        path.replace(previous(path))


def last_lines(path: Path, most: int) -> tuple[list[bytes], bool]:
    """The complete lines within the last `most` bytes of a file, and whether these are the whole file."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - most)
            file.seek(start)
            text = file.read()
    except OSError:
        return [], True
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    return lines[1:] if start else lines, start == 0


def write_atomically(path: Path, content: bytes) -> None:
    """Writes under another name and renames, so that the file is there whole or not at all."""
    with atomically(path) as file:
        file.write(content)


@contextmanager
def atomically(path: Path, on_disk: bool = True) -> Iterator[BinaryIO]:
    """A file to write to that takes its name once it is whole and, by default, on disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            if on_disk:
                os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
