"""The papers' tables and figures, from training to verdict: a folder per paper.

`reproduction` says what a reproduction consists of, `measurements` what is kept of a run, `evidence` how a claim is
decided, `store` and `pages` what lies on disk, `reproduce` how it all goes together, `learning_rates` where the
learning rates are from. `CATALOGUE` has every table and figure by name.
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

CATALOGUE: dict[str, Reproduction] = {made.id: made for made in _ALL}

__all__ = ["CATALOGUE"]
