"""Zhang et al. 2024 and 2025, Towards Optimal Heterogeneous Client Sampling in Multi-Model Federated Learning.

`table1` trains what `costs` counts and `steps` draws from; `staleness` and `aging` look at stored updates.
"""

from mmfl.papers.variance import costs, staleness, steps, table1

REPRODUCTIONS = (*table1.REPRODUCTIONS, *costs.REPRODUCTIONS, *steps.REPRODUCTIONS, *staleness.REPRODUCTIONS)
