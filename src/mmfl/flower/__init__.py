"""Real clients: the same methods over nodes that keep their data, on Flower's SuperLink and SuperNodes."""

from mmfl.flower.module import Module

__all__ = ["Module"]
