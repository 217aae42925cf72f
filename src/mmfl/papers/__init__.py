"""The papers' tables and figures: what to train for each, what to measure, and which claims hold. One folder per paper.

`reproduction` defines what a reproduction is, `measurements` what is kept of a run, `evidence` how claims are tested,
`store` and `pages` the files on disk, `reproduce` the steps from training to page, and `learning_rates` the sweep that
chose the learning rates. `CATALOGUE` has every table and figure by name. No method is defined here.
"""

from mmfl.papers import group, learning_rates, mfa, ucb, variance
from mmfl.papers.reproduction import Reproduction

_ALL: tuple[Reproduction, ...] = (
    *mfa.REPRODUCTIONS,
    *ucb.REPRODUCTIONS,
    *variance.REPRODUCTIONS,
    *group.REPRODUCTIONS,
    *learning_rates.REPRODUCTIONS,
)

CATALOGUE: dict[str, Reproduction] = {reproduction.id: reproduction for reproduction in _ALL}

__all__ = ["CATALOGUE"]
