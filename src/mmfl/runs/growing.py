"""Files that grow by whole lines while they are read, such as the metrics of a run under way."""

from pathlib import Path

_REMEMBERED = 256  # bytes


class Growing:
    """Gives the lines of a file as they come, each once; a last line that is not whole yet waits.

    The file may also be cut short or written anew, as by a run that resumes: then what was read last is no longer in
    its place, and the file is read from its beginning.
    """

    def __init__(self, path: Path):
        self.path = path
        self.offset, self.last = 0, b""

    def fresh(self) -> tuple[list[bytes], bool]:
        """The lines that are new, and whether they are all there are, in place of those given before."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset - len(self.last))
                text = file.read()
                anew = not text.startswith(self.last)
                if anew:
                    self.offset, self.last = 0, b""
                    file.seek(0)
                    text = file.read()
        except FileNotFoundError:
            anew, text = bool(self.offset), b""
            self.offset, self.last = 0, b""
        whole = text[len(self.last) : text.rfind(b"\n") + 1]
        self.offset += len(whole)
        self.last = (self.last + whole)[-_REMEMBERED:]
        return whole.splitlines(), anew


def last_lines(path: Path, most: int) -> tuple[list[bytes], bool]:
    """The whole lines in the last so many bytes of a file, and whether these are all of it."""
    try:
        with path.open("rb") as file:
            start = max(0, file.seek(0, 2) - most)
            file.seek(start)
            text = file.read()
    except OSError:
        return [], True
    lines = text[: text.rfind(b"\n") + 1].splitlines()
    return lines[1:] if start else lines, start == 0
