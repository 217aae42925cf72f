"""Five tasks whose networks are so small that every variant of `forecast` can train with many seeds on two cores.

The federation is that of the five tasks, with perceptrons on the principal components of images. The handwriting of 120
writers stands in for Shakespeare, as the task whose data has natural owners.
"""

from typing import Any

import torch
from torch import nn

from mmfl.data import SOURCES, Dataset, features
from mmfl.data.dataset import as_inputs

_ROWS = 8000  # of which the principal components are those


def components(source: str, number: int, **options: Any) -> Dataset:
    """A data set with its first principal components as inputs, scaled by their mean standard deviation."""
    from sklearn.decomposition import PCA  # takes a second to import

    data = SOURCES[source](**options)
    rows = as_inputs(data.x[:: max(len(data.y) // _ROWS, 1)]).flatten(1)
    found = PCA(number, random_state=0).fit(rows.numpy())
    scale = float((found.explained_variance_**0.5).mean())
    layer = nn.Linear(rows.shape[1], number)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(found.components_ / scale))
        layer.bias.copy_(torch.from_numpy(-found.components_ @ found.mean_ / scale))
    return features(data, nn.Sequential(nn.Flatten(), layer))


def _task(name: str, source: str, inputs: int, hidden: int, classes: int, lr: float, partition: str) -> str:
    data = f"{{name='{__name__}.components', source={source}, number={inputs}}}"
    model = f"{{name='perceptron', inputs={inputs}, hidden={hidden}, classes={classes}}}"
    return f"{{name='{name}', data={data}, model={model}, lr={lr}, epochs=5, partition={partition}}}"


_LABELS = "{name='labels', fraction=0.3, sizes={name='high-low'}}"
_TASKS = (
    _task("fashion-a", "'fashion-mnist'", 40, 48, 10, 0.1, _LABELS),
    _task("fashion-b", "'fashion-mnist'", 40, 48, 10, 0.1, _LABELS),
    _task("cifar10", "'cifar10'", 60, 64, 10, 0.1, _LABELS),
    _task("emnist", "'emnist', split='balanced'", 50, 96, 47, 0.2, _LABELS),
    _task("femnist", "'femnist'", 50, 96, 62, 0.2, "{name='owners', most=60}"),
)
SETTINGS = [f"tasks=[{', '.join(_TASKS)}]"]
