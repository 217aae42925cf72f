"""Bhuyan, Moharir & Joshi 2022, Multi-Model Federated Learning with Provable Guarantees.

`quadratic` trains on the quadratic federation of `chain`, with what follows in `quadratic_findings` and `bounds`;
`gain` and `gain_tables` on Synthetic sets and faces of `tasks`, towards the accuracies of `goals`.
"""

from mmfl.papers.mfa import gain, gain_tables, quadratic

_FIG1, _FIG2, _BOUNDS = quadratic.REPRODUCTIONS
REPRODUCTIONS = (_FIG1, _FIG2, *gain.REPRODUCTIONS, *gain_tables.REPRODUCTIONS, _BOUNDS)
