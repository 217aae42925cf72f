"""The evidence for `forecast`, the method of this project: how near it comes to full participation, and why.

`runs` has what all parts share, `accuracy` the comparison with other methods and `ablation` that with `variants` of the
method, whose rules are in `sampling`, `forecasts` and `candidates` and are not offered by the package.
"""

from mmfl.papers.forecast import ablation, accuracy

REPRODUCTIONS = (*accuracy.REPRODUCTIONS, *ablation.REPRODUCTIONS)
"""All tables and figures of the method."""
