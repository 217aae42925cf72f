"""What came back from clients: their updates, and the vectors that are kept of them from round to round.

Where the rows of updates are (in this process, in another, with a client that keeps them) is known here and in the
engine, and nowhere else.
"""

from mmfl.updates.store import Keep, Stored
from mmfl.updates.trained import Trained
from mmfl.updates.updates import Updates
from mmfl.updates.world import ALONE, World

__all__ = ["ALONE", "Keep", "Stored", "Trained", "Updates", "World"]
