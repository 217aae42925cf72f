"""Clusters in the plane: a picture of loss vectors for a round's record."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHOWN = 500  # clients; more are not told apart, and every record would have them
_DIGITS = 4


def plane(client: NDArray[np.int64], points: NDArray[np.float64], label: NDArray[np.int64]) -> dict[str, Any]:
    """The first two principal components of points [clients, tasks], with each client's number and cluster.

    `explained` are the shares of the variance along the two. Of many clients, some evenly spaced ones are given. Empty
    where all points are the same, so that there is nothing to see.

    >>> plane(np.arange(3), np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]), np.array([0, 0, 1]))["explained"]
    [1.0, 0.0]
    """
    if len(points) < 2 or not np.ptp(points, axis=0).any():
        return {}
    from sklearn.decomposition import PCA  # takes a second to import

    model = PCA(min(2, points.shape[1], len(points)), svd_solver="full")
    found = np.zeros((len(points), 2))
    found[:, : model.n_components] = model.fit_transform(points)
    explained = np.zeros(2)
    explained[: model.n_components] = model.explained_variance_ratio_
    shown = np.linspace(0, len(points) - 1, min(len(points), _SHOWN)).round().astype(int)
    x, y = found[shown].round(_DIGITS).T + 0.0  # no negative zeros
    return {
        "client": client[shown].tolist(),
        "cluster": label[shown].tolist(),
        "x": x.tolist(),
        "y": y.tolist(),
        "explained": explained.round(_DIGITS).tolist(),
    }
