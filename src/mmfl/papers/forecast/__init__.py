"""The evidence for `forecast`, the method of this project: how near it comes to full participation, and why.

`runs` has what all parts share, `accuracy` the comparison with other methods, `costs` what their accuracy costs and
`robustness` the same in other settings. `ablation` compares the method with `variants` of it, whose rules are in
`sampling`, `forecasts`, `candidates`, `newcomers` and `common_step`; the package does not offer them. All variants
train on `small_networks`, the best of them on the papers' federations.
"""

from mmfl.papers.forecast import ablation, accuracy, costs, robustness

REPRODUCTIONS = (
    *accuracy.REPRODUCTIONS,
    *costs.REPRODUCTIONS,
    *ablation.REPRODUCTIONS,
    *robustness.REPRODUCTIONS,
)
"""All tables and figures of the method."""
