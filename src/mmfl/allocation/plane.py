"""Loss vectors projected onto a plane, for a figure of the clusters in a round's record."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAX_CLIENTS = 500  # more could not be told apart in a figure, and would make every record larger
_DIGITS = 4


def project(client: NDArray[np.int64], points: NDArray[np.float64], label: NDArray[np.int64]) -> dict[str, Any]:
    """The first two principal components of points [clients, tasks], with each client's number and cluster.

    `explained` holds the shares of the variance along the two. If there are many clients, evenly spaced ones are
    selected. The result is empty if all points are equal.

    >>> project(np.arange(3), np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]), np.array([0, 0, 1]))["explained"]
    [1.0, 0.0]
    """
    if len(points) < 2 or not np.ptp(points, axis=0).any():
        return {}
    from sklearn.decomposition import PCA  # takes a second to import

    model = PCA(min(2, points.shape[1], len(points)), svd_solver="full")
    projection = np.zeros((len(points), 2))
    projection[:, : model.n_components] = model.fit_transform(points)
    explained = np.zeros(2)
    explained[: model.n_components] = model.explained_variance_ratio_
    selected = np.linspace(0, len(points) - 1, min(len(points), _MAX_CLIENTS)).round().astype(int)
    x, y = projection[selected].round(_DIGITS).T + 0.0  # no negative zeros
    return {
        "client": client[selected].tolist(),
        "cluster": label[selected].tolist(),
        "x": x.tolist(),
        "y": y.tolist(),
        "explained": explained.round(_DIGITS).tolist(),
    }
