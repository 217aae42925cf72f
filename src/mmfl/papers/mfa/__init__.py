"""Bhuyan, Moharir & Joshi 2022, Multi-Model Federated Learning with Provable Guarantees.

`quadratic` and `bounds` train on the quadratic federation of `chain`, with what follows in `*_findings`; `gain` and
`gain_tables` on Synthetic sets and faces of `tasks`, towards the accuracies of `goals`.
"""

from mmfl.papers.mfa import bounds, gain, gain_tables, quadratic

REPRODUCTIONS = (*quadratic.REPRODUCTIONS, *gain.REPRODUCTIONS, *gain_tables.REPRODUCTIONS, *bounds.REPRODUCTIONS)
