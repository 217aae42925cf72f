"""Features of a frozen network: a head on them trains as it does on the network."""

from dataclasses import replace

import pytest
import torch
from small import IMAGES, ask, assert_agree, federation, task, train
from torch import nn

from conftest import refusals, refused
from mmfl.data import digits, features
from mmfl.engine import Simulation
from mmfl.models import Perceptron, SmallCNN

BASE = task(lambda: SmallCNN(8, 2, (3, 4), 5, 7, padding=1), IMAGES).build().requires_grad_(False)


def head() -> nn.Module:
    return nn.Linear(7, 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
@pytest.mark.parametrize("mode", ["vectorised", "sequential"])
def test_a_head_trains_on_features_as_it_does_on_the_network(mode, dtype):
    x = IMAGES if dtype == torch.float32 else (IMAGES.sigmoid() * 255).to(dtype)
    whole = task(lambda: nn.Sequential(BASE, head()), x)
    alone = replace(whole, model=head, data=features(whole.data, BASE, batch_size=7))
    engines = [Simulation("cpu", mode) for _ in range(2)]
    start = engines[1].initial(federation(alone), 0, seed=1)
    answers = [
        train(engine, ask(engine, federation(each), weights=start))[0]
        for engine, each in zip(engines, (whole, alone), strict=True)
    ]
    assert_agree(*answers)


def test_features_are_computed_in_evaluation_mode_and_the_network_stays_as_it_was():
    base = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Sequential(nn.BatchNorm1d(64)).eval())
    data = digits()
    made = features(data, base)
    torch.testing.assert_close(made.x, base.eval()(data.x))
    torch.testing.assert_close(made.x_test, base(data.x_test))
    base.train()
    base[2].eval()
    features(data, base)
    assert [part.training for part in base] == [True, True, False]
    assert made.y is data.y
    assert made.rows is data.rows


class Pair(nn.Module):
    def forward(self, x):
        return x.flatten(1), x.sum((1, 2, 3))


def test_features_may_have_any_structure():
    first, second = features(digits(), Pair(), 100).x
    assert first.shape == (1438, 64)
    assert second.shape == (1438,)


class Sum(nn.Module):
    def forward(self, x):
        return x.sum(0)


@refusals(
    (lambda: features(digits(), Perceptron), "data 'digits': base is <class", "expected a torch.nn.Module"),
    (
        lambda: features(digits(), Perceptron(3, 4, 5)),
        "data 'digits': the base fails on inputs of shape (256, 1, 8, 8)",
    ),
    (lambda: features(digits(), Sum()), "gives (1, 8, 8) for 256 examples; expected a row for each"),
    (lambda: features(digits(), nn.Flatten(), 0), "batch_size is 0"),
)
def test_refused(make, words):
    with refused(*words):
        make()
