"""Zhang et al. 2024 and 2025, Towards Optimal Heterogeneous Client Sampling in Multi-Model Federated Learning.

`table1` trains what `comparisons` draws from; `staleness` and `aging` look at stored updates.
"""

from mmfl.papers.variance import comparisons, staleness, table1

REPRODUCTIONS = (*table1.REPRODUCTIONS, *comparisons.REPRODUCTIONS, *staleness.REPRODUCTIONS)
