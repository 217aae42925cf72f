"""The papers' tables and figures, from training to verdict: one file per experiment of a paper.

`reproduction` says what a reproduction consists of, `measurements` what is kept of a run, `evidence` how a claim is
decided, `store` and `pages` what lies on disk, `reproduce` how it all goes together. `CATALOGUE` has every table and
figure by name.
"""

from mmfl.experiments import grouping, learning_rates, mfa_bounds, mfa_quadratic, staleness, steps, table1, ucb
from mmfl.experiments.reproduction import Reproduction

_ALL: tuple[Reproduction, ...] = (
    *mfa_quadratic.REPRODUCTIONS,
    *mfa_bounds.REPRODUCTIONS,
    *ucb.REPRODUCTIONS,
    *table1.REPRODUCTIONS,
    *steps.REPRODUCTIONS,
    *staleness.REPRODUCTIONS,
    *grouping.REPRODUCTIONS,
    *learning_rates.REPRODUCTIONS,
)

CATALOGUE: dict[str, Reproduction] = {made.id: made for made in _ALL}

__all__ = ["CATALOGUE"]
