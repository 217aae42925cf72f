"""What came back from clients: their updates, and the vectors that are kept of them from round to round.

Where the rows of updates are (in this process, in another, with a client that keeps them) is known here and in the
engine, and nowhere else.
"""

from mmfl.updates.rows import ClientRows, StoredRows
from mmfl.updates.store import ClientVectorStore, StorageOptions
from mmfl.updates.updates import SentFrom, Trained, Updates
from mmfl.updates.world import SINGLE_PROCESS, World

__all__ = [
    "SINGLE_PROCESS",
    "ClientRows",
    "ClientVectorStore",
    "SentFrom",
    "StorageOptions",
    "StoredRows",
    "Trained",
    "Updates",
    "World",
]
