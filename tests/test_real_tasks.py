"""Every named method with every kind of task: batch norm, adapters, optimisers, structured and lazy data, metrics."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mmfl
from mmfl.data.augmentation import Flip, Noise
from mmfl.methods import METHODS

CLIENTS, ROUNDS, RATE = 6, 2, 0.6
optimisers, objectives = mmfl.optimisers, mmfl.objectives


class Text(nn.Module):
    """Next tokens by attention with dropout, from tokens and a mask of padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, 0.2, batch_first=True)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        later = torch.ones(6, 6, dtype=torch.bool, device=ids.device).triu(1)
        return self.output(self.encoder(self.embedding(ids), later, padding))


class Table(nn.Module):
    """Two inputs, and two outputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.layer = nn.Embedding(3, 2), nn.Linear(5, 3)

    def forward(self, numbers: Tensor, kind: Tensor) -> dict[str, Tensor]:
        first, *rest = self.layer(torch.cat([numbers, self.kind(kind)], 1)).split(1, dim=1)
        return {"amount": first, "labels": torch.cat(rest, 1)}


def table_loss(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    amount = objectives.per_example(objectives.squared_error(outputs["amount"], targets["amount"]))
    return amount + objectives.per_example(objectives.binary_cross_entropy(outputs["labels"], targets["labels"]))


def amount_error(outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
    return objectives.absolute_error(outputs["amount"], targets["amount"])


amount_error.lower_is_better = True


def normed() -> nn.Module:
    # No bias before the norm: its gradient is nothing but rounding, which Adam scales up, as it would attention's.
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4)
    )


def federation(folder: Path) -> mmfl.Federation:
    """One task of each kind; rows have owners, so that clients are tested on their own."""
    rng, examples = np.random.default_rng(0), 90
    owner, classes = np.arange(examples) % CLIENTS, rng.integers(0, 4, examples)
    pictures = rng.normal(size=(examples, 1, 4, 4)).astype(np.float32) + 0.5 * classes[:, None, None, None]
    np.save(folder / "pictures.npy", pictures)
    lazy = np.load(folder / "pictures.npy", mmap_mode="r")
    tokens, length = rng.integers(0, 7, (examples, 7)), rng.integers(2, 7, examples)
    counted = np.arange(6) < length[:, None]
    numbers, kind = rng.normal(size=(examples, 3)).astype(np.float32), rng.integers(0, 3, examples)
    table = {"amount": numbers.sum(1) + kind, "labels": (numbers[:, :2] > 0).astype(np.float32)}
    weights = {"target": classes, "weight": rng.uniform(0.5, 1.5, examples).astype(np.float32)}
    torch.manual_seed(0)
    base = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))
    arrays, common = partial(mmfl.data.from_arrays, owner=owner), {"lr": 0.05, "batch_size": 5}
    tasks = [
        mmfl.Task(
            "shared norm",
            normed,
            arrays(lazy, classes),
            optimiser=optimisers.AdamW(clip_norm=1.0),
            optimiser_state="client",
            augment=[Flip(), Noise(0.1)],
            metrics=["macro_f1", "auc"],
            **common,
        ),
        mmfl.Task(
            "local norm",
            normed,
            arrays(pictures, weights),
            optimiser=optimisers.SGD(momentum=0.9, nesterov=True, clip_value=0.5),
            lr_steps=mmfl.schedules.Cosine(warm_up=1),
            batch_norm="local",
            loss=objectives.weighted,
            metric=objectives.unweighted,
            priority=2.0,
            **common,
        ),
        mmfl.Task(
            "adapters",
            lambda: mmfl.models.lora(base, rank=2, layers=["1"], heads={"3": nn.Linear(8, 4)}, dropout=0.1),
            arrays(pictures, classes),
            loss=partial(objectives.cross_entropy, label_smoothing=0.1, weight=[1.0, 1.0, 2.0, 1.0]),
            **common,
        ),
        mmfl.Task(
            "text",
            Text,
            arrays({"ids": tokens[:, :-1], "padding": ~counted}, np.where(counted, tokens[:, 1:], -100)),
            optimiser=optimisers.SGD(weight_decay=0.01),
            loss=objectives.next_token,
            metric="perplexity",
            **common,
        ),
        mmfl.Task(
            "table",
            Table,
            arrays({"numbers": numbers, "kind": kind}, table),
            loss=table_loss,
            metric=amount_error,
            **common,
        ),
    ]
    return mmfl.Federation(tasks, capacity=[1, 2, 3, 1, 2, 5], seed=0)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> dict[str, mmfl.Comparison]:
    """All methods, trained in cohorts and one client after another."""
    pool = federation(tmp_path_factory.mktemp("data"))
    ways = ("vectorised", "sequential")
    return {way: mmfl.compare(pool, list(METHODS), ROUNDS, RATE, engine=way, device="cpu") for way in ways}


@pytest.mark.parametrize("method", METHODS)
def test_a_method_trains_every_kind_of_task_alike_on_both_engines(results, method):
    one, other = (results[way][method] for way in ("vectorised", "sequential"))
    assert [record.drawn for record in one.records] == [record.drawn for record in other.records]
    for task, vectorised, sequential in zip(one.tasks, one.weights, other.weights, strict=True):
        assert torch.isfinite(vectorised).all(), task
        torch.testing.assert_close(
            vectorised, sequential, rtol=1e-3, atol=1e-4, msg=lambda text, task=task: task + text
        )
    values = one.metrics.set_index("metric")["value"]
    assert set(values.index) == {"accuracy", "macro_f1", "auc", "unweighted", "perplexity", "amount_error"}
    assert np.isfinite(values.drop("auc")).all()
    assert set(one.frame("client_worst_tenth").dropna(how="all").columns) == set(one.tasks)
    assert (one.participation.sum() > 0).any()
