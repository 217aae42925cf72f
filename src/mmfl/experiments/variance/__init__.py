"""Zhang et al. 2024 and 2025, Towards Optimal Heterogeneous Client Sampling in Multi-Model Federated Learning.

`table1` trains what `steps` also draws from; `staleness` and `aging` look at stored updates.
"""

from mmfl.experiments.variance import staleness, steps, table1

REPRODUCTIONS = (*table1.REPRODUCTIONS, *steps.REPRODUCTIONS, *staleness.REPRODUCTIONS)
