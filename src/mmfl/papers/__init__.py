"""The papers' tables and figures: what to train for each, what to measure, and which claims hold. One folder per paper,
and one, `forecast`, for the method of this project.

`reproduction` defines what a reproduction is, `catalogue.toml` what its page says of it, `measurements` what is kept of
a run, `evidence` how a claim is tested, `families` how claims are judged together, `seeds` how seeds are added until
they are decided, `store` the files on disk, `reproduce` the steps from training to page, `pages` what a page says, and
`learning_rates` the sweep that chose the learning rates. `CATALOGUE` has every table and figure by name. No
method is defined here.
"""

from mmfl.papers import forecast, group, learning_rates, mfa, ucb, variance, venn
from mmfl.papers.reproduction import Reproduction

CATALOGUE: dict[str, Reproduction] = {
    each.id: each
    for paper in (mfa, ucb, variance, group, learning_rates, forecast, venn)
    for each in paper.REPRODUCTIONS
}

__all__ = ["CATALOGUE"]
