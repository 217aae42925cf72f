"""The round loop, which reads like Algorithm 1 of Zhang et al. 2025, and what a round records.

`loop` is the algorithm, `round` its steps for one replica, `dispatch` hands clients' work to the engine, `replica` is
what a method remembers, `best` the weights of its best rounds, `average` those averaged over rounds, `record` what is
written down, `diagnostics` the numbers in it, and `rule_checks` refuse what a rule of your own may get wrong.
"""

from mmfl.training.average import AveragedWeights
from mmfl.training.best import BestWeights
from mmfl.training.loop import rounds
from mmfl.training.paces import all_rounds
from mmfl.training.replica import Replica, TrainingState
from mmfl.training.round import Round

__all__ = ["AveragedWeights", "BestWeights", "Replica", "Round", "TrainingState", "all_rounds", "rounds"]
