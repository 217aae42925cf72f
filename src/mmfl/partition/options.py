"""What the options of partitions and sizes have in common: seeds, and choices shared by all tasks."""

from enum import IntEnum

import numpy as np

from mmfl.checks import check, is_whole
from mmfl.randomness import Purpose, generator


class Choice(IntEnum):
    """What is chosen for a client; part of the address, so that no two choices share numbers."""

    VOLUME = 1
    LABELS = 2
    CLUSTER = 3


def check_seed(where: str, seed: int | None) -> None:
    """Refuses what is neither a seed nor None."""
    check(seed is None or is_whole(seed, 0), where, "seed", seed, "a whole number from 0, or none")


def chooser(choice: Choice, seed: int | None, rng: np.random.Generator) -> np.random.Generator:
    """Where the choice is made from: the seed, the same for every task, or without one the task's own generator."""
    if seed is None:
        return rng
    return generator(seed, Purpose.PARTITION, -choice)  # tasks have the addresses from 0 on
