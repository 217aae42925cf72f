"""Options that partitions and sizes share: seeds, and choices that are the same for all tasks."""

from enum import IntEnum

import numpy as np

from mmfl.checks import check, is_whole
from mmfl.randomness import Purpose, generator


class Choice(IntEnum):
    """What is chosen for a client. It is part of the address, so that two choices never share random numbers."""

    VOLUME = 1
    LABELS = 2
    CLUSTER = 3


def check_seed(where: str, seed: int | None) -> None:
    """Refuses a value that is neither a seed nor None."""
    check(seed is None or is_whole(seed, 0), where, "seed", seed, "a whole number from 0, or none")


def choice_generator(choice: Choice, seed: int | None, rng: np.random.Generator) -> np.random.Generator:
    """The generator for a choice: seeded, and so the same for every task, or without a seed the task's own."""
    if seed is None:
        return rng
    return generator(seed, Purpose.PARTITION, -choice)  # tasks have the addresses from 0
