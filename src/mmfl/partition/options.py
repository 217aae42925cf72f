"""What the options of partitions and sizes have in common: their checks, and choices shared by all tasks."""

from enum import IntEnum

import numpy as np

from mmfl.errors import UserError
from mmfl.randomness import Purpose, generator


def check(right: bool, where: str, name: str, value: object, expected: str) -> None:
    """Refuses an option that is not right."""
    if not right:
        raise UserError(f"{where}: {name} is {value!r}; expected {expected}.")


def whole(value: object, least: int) -> bool:
    """Whether a value is a whole number of at least `least`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def within(value: object, least: float, most: float) -> bool:
    """Whether a value is a finite number in [least, most]."""
    return isinstance(value, int | float | np.number) and bool(np.isfinite(value)) and bool(least <= value <= most)


def positive(value: object) -> bool:
    """Whether a value is a finite number above 0."""
    return within(value, np.nextafter(0.0, 1.0), np.inf)


class Choice(IntEnum):
    """What is chosen for a client; part of the address, so that no two choices share numbers."""

    VOLUME = 1
    LABELS = 2
    CLUSTER = 3


def check_seed(where: str, seed: int | None) -> None:
    """Refuses what is neither a seed nor None."""
    check(seed is None or whole(seed, 0), where, "seed", seed, "a whole number from 0, or none")


def chooser(choice: Choice, seed: int | None, rng: np.random.Generator) -> np.random.Generator:
    """Where the choice is made from: the seed, the same for every task, or without one the task's own generator."""
    if seed is None:
        return rng
    return generator(seed, Purpose.PARTITION, -choice)  # tasks have the addresses from 0 on
