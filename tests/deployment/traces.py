"""What a deployment may not leave behind: looked for after every test with processes."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from conftest import wait_for
from mmfl.runs.listener import Listener

needs_flower = pytest.mark.skipif(
    find_spec("flwr") is None, reason="Flower is not installed: pip install 'mmfl[flower]'"
)


@pytest.fixture
def clean(monkeypatch, tmp_path) -> Iterator[Path]:  # pytest's own folder is made before
    """A folder for all temporary files of a test, in which nothing may be left, nor a process that knows of it."""
    folder = Path(tempfile.mkdtemp(prefix="m-"))  # a short path, as sockets need
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    try:
        yield folder
        wait_for(lambda: not running(folder) and not list(folder.iterdir()), seconds=120)
    finally:
        shutil.rmtree(folder)


def running(folder: Path) -> dict[int, str]:
    """The command lines of processes with this folder for temporary files, but for this one."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if place.name != str(os.getpid()) and f"TMPDIR={folder}".encode() in (place / "environ").read_bytes():
                found[int(place.name)] = (place / "cmdline").read_text().replace("\0", " ")
    return found


class Heard(Listener):
    """Writes down what it hears, and does something after some rounds."""

    def __init__(self, plan: dict[int, Callable[[], None]] | None = None):
        self.plan, self.records, self.info, self.ended = plan or {}, [], None, None

    def begin(self, info):
        self.info = info

    def round(self, records):
        self.records += records
        self.plan.pop(records[0].round, lambda: None)()

    def end(self, end):
        self.ended = end

    @property
    def rounds(self) -> list[int]:
        return [record.round for record in self.records]
