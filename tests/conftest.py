"""What the tests share: small views and tasks, all draws of a federation, checks of errors."""

import asyncio
import atexit
import fcntl
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import settings

from mmfl import Task, cli, data, models
from mmfl.errors import UserError
from mmfl.federation import RoundView
from mmfl.updates import ClientVectorStore

# The engine measures which mode is faster in every test run; it neither reads nor writes the user's cache.
os.environ["MMFL_CACHE"] = tempfile.mkdtemp(prefix="mmfl-cache-")
atexit.register(shutil.rmtree, os.environ["MMFL_CACHE"], ignore_errors=True)

# Tests use the CPU unless they name a GPU, so that they are the same on every machine.
os.environ["MMFL_DEVICE"] = "cpu"

# A shell that starts the tests in the background ignores Ctrl-C for them; the commands that they start must not.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("mmfl", deadline=None, derandomize=True, database=None, max_examples=40)
settings.load_profile("mmfl")


@pytest.hookimpl(trylast=True)  # once it is known which tests run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with long tests, which mostly wait, are spread over the first half, so that one process waits while others
    compute. A file belongs to one process, so that what its tests share is made once."""
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    long = [path for path, own in files.items() if any(item.get_closest_marker("long") for item in own)]
    order = [path for path in files if path not in long]
    for n, path in enumerate(long):
        order.insert(n * len(order) // (2 * len(long)), path)
    items[:] = [item for path in order for item in files[path]]


@pytest.fixture(autouse=True)
def forget_own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Unloads modules that a test has written: another test may write one with the same name."""
    known, path = set(sys.modules), sys.path[:]
    yield
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path_factory.getbasetemp())):
            del sys.modules[name]
    sys.path[:] = path


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills once for all test processes; the others wait for it."""
    shared = factory.getbasetemp().parent if "PYTEST_XDIST_WORKER" in os.environ else factory.getbasetemp()
    folder, done = shared / name, shared / f"{name}.done"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            done.touch()
    return folder


def view_of(sizes, capacity=1, budget=1.0, *, round=1, seed=0, losses=None, priority=()) -> RoundView:
    """The view of a round in which the clients have `sizes` [clients, tasks] examples."""
    sizes = np.asarray(sizes, dtype=np.int64)
    share = sizes / np.maximum(sizes.sum(0), 1)
    capacity = np.broadcast_to(np.asarray(capacity, dtype=np.int64), len(sizes))
    signals = {} if losses is None else {"losses": np.asarray(losses, dtype=float)}
    return RoundView(round, seed, sizes, share, capacity, float(budget), signals, np.array(priority, dtype=float))


def table_of(allocation) -> np.ndarray:
    """How many processors of each client train each task, [clients, tasks]."""
    count = np.zeros(allocation.probabilities.shape, dtype=int)
    count[allocation.client, allocation.task] = allocation.count
    return count


def toy_task(name="toy", classes=4, **options) -> Task:
    """A task of 60 examples with three inputs."""
    model = partial(models.LogisticRegression, inputs=3, classes=classes)
    return Task(name, **{"model": model, "data": data.blobs(75, inputs=3, classes=classes), **options})


def every_draw(probabilities, capacity) -> Iterator[tuple[float, np.ndarray]]:
    """All outcomes of an independent draw: the probability of each, and its counts [clients, tasks]."""
    chances = np.hstack([probabilities, np.maximum(0, 1 - probabilities.sum(1, keepdims=True))])
    client = np.repeat(np.arange(len(chances)), capacity)
    for choice in itertools.product(range(chances.shape[1]), repeat=len(client)):
        if (chance := float(np.prod(chances[client, choice]))) > 0:
            count = np.zeros(chances.shape, dtype=np.int64)
            np.add.at(count, (client, choice), 1)
            yield chance, count[:, :-1]


Found = TypeVar("Found")


def wait_for(event: Callable[[], Found], seconds: float = 600.0) -> Found:
    """What `event` returns as soon as it is true. The time is a safety net, far beyond what any machine needs."""
    deadline = time.monotonic() + seconds
    while not (found := event()):
        assert time.monotonic() < deadline, "what the test waits for did not happen"
        time.sleep(0.05)
    return found


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """The block must raise a UserError whose message contains all these words."""
    with pytest.raises(UserError) as caught:
        yield
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{missing} not in: {caught.value}"


def refusals(*rows):
    """Parametrises a test by (make, *words): what must be refused, and words of the error message."""
    return pytest.mark.parametrize(
        ("make", "words"), [pytest.param(make, words, id=" ".join(words)) for make, *words in rows]
    )


@pytest.fixture
def answer(monkeypatch, capsys):
    """Asks `mmfl` in this process, which has imported everything: exit code, output and errors."""

    def ask(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["mmfl", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return (left.value.code or 0, *capsys.readouterr())

    return ask


@pytest.fixture
def touched(monkeypatch):
    """Counts the rows that are read from or written to stored vectors."""
    counted = []

    def count(plain):
        def counting(self, client, *rows):
            counted.append(len(client))
            return plain(self, client, *rows)

        return counting

    monkeypatch.setattr(ClientVectorStore, "held_rows", count(ClientVectorStore.held_rows))
    monkeypatch.setattr(ClientVectorStore, "put", count(ClientVectorStore.put))
    return counted


@pytest.fixture(scope="session")
def browser():
    """Debian's Chromium, or the one that playwright brought along."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = shutil.which("chromium") or shutil.which("google-chrome")
    options = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=found, args=options)
        except playwright.Error as error:
            pytest.skip(f"no browser can be started: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


def run_coroutine(work):
    """The result of a coroutine, in a thread of its own: a browser that another test has opened runs a loop in this."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
