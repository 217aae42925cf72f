"""Bhuyan, Moharir & Joshi 2022, Multi-Model Federated Learning with Provable Guarantees.

`quadratic` and `bounds` train on the quadratic federation of `chain`; `gain` on Synthetic sets and faces of `tasks`,
towards the accuracies of `goals`. What follows from the measurements is in `*_findings` and `gain_tables`.
"""

from mmfl.papers.mfa import bounds, gain, quadratic

REPRODUCTIONS = (*quadratic.REPRODUCTIONS, *gain.REPRODUCTIONS, *bounds.REPRODUCTIONS)
