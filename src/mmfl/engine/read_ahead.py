"""Reading ahead: while a step runs, a thread reads the examples of the next steps."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from mmfl.data.lazy import Rows, read
from mmfl.data.structure import Structure

_AHEAD = 2  # requests that are read or waiting; no more examples than theirs are in memory


def read_ahead(structure: Structure, requests: Iterable[Rows]) -> Iterator[Structure]:
    """The examples of each request, as tensors on the CPU; equal requests one after another are read once."""
    waiting: deque[Future[Structure]] = deque()
    last: Rows | None = None
    pool = ThreadPoolExecutor(1, "mmfl-read-ahead")
    try:
        for rows in requests:
            repeated = bool(waiting) and last is not None and np.array_equal(rows, last)
            waiting.append(waiting[-1] if repeated else pool.submit(read, structure, rows))
            last = rows
            if len(waiting) > _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
