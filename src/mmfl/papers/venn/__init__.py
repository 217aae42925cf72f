"""Venn (Liu et al. 2023): jobs that compete for devices of different kinds, simulated without training.

`devices` are the phones that check in, `schedules` the rules, `jobs` the simulation, `ratios` the table.
"""

from mmfl.papers.venn.ratios import REPRODUCTIONS

__all__ = ["REPRODUCTIONS"]
