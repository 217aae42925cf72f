"""The round loop, which reads like Algorithm 1 of Zhang et al. 2025, and what a round records."""

from mmfl.training.loop import Record, Replica, Round, TrainingState, rounds

__all__ = ["Record", "Replica", "Round", "TrainingState", "rounds"]
