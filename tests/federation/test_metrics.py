"""Metrics of the whole test set: the numbers of scikit-learn, their names, and mistakes that show before training."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn
from torch import nn

import mmfl
from conftest import refusals, refused, toy_task
from mmfl.engine import measurer
from mmfl.federation.metrics import (
    AUC,
    AdditiveMetric,
    BalancedAccuracy,
    Confusion,
    MacroF1,
    Perplexity,
    RootMeanSquaredError,
    TopK,
)
from mmfl.federation.objectives import squared_error
from mmfl.report import tables

NAMES = ["macro_f1", "balanced_accuracy", "auc", {"name": "top_k", "k": 3}, "perplexity", "confusion"]


def measured(metric, outputs, targets) -> float:
    """A metric over two batches of unlike length."""
    parts = [slice(0, 7), slice(7, None)]
    if isinstance(metric, AdditiveMetric):
        return float(metric.value(sum(metric.total(outputs[part], targets[part]) for part in parts)))
    meter = metric.start()
    for part in parts:
        meter.update(outputs[part], targets[part])
    return float(meter.compute())


def test_metrics_of_a_run_are_those_of_scikit_learn_on_its_model(monkeypatch):
    monkeypatch.setattr(measurer, "forward_batch_size", lambda architecture, device: 100)
    digits = mmfl.data.digits()
    task = mmfl.Task("digits", mmfl.models.LogisticRegression, digits, lr=0.5, epochs=3, metrics=NAMES)
    run = mmfl.train(mmfl.Federation([task], clients=20), "random", rounds=4, rate=0.5)
    with torch.no_grad():
        outputs = run.module("digits")(digits.x_test).double()
    y, guess, chance = digits.y_test.numpy(), outputs.argmax(1).numpy(), outputs.softmax(1).numpy()
    expected = {
        "accuracy": sklearn.accuracy_score(y, guess),
        "macro_f1": sklearn.f1_score(y, guess, average="macro"),
        "balanced_accuracy": sklearn.balanced_accuracy_score(y, guess),
        "auc": sklearn.roc_auc_score(y, chance, multi_class="ovr", average="macro"),
        "top_3": sklearn.top_k_accuracy_score(y, chance, k=3),
        "perplexity": np.exp(sklearn.log_loss(y, chance)),
    }
    table = run.metrics
    last = table[table["round"] == 4].set_index("metric")["value"]
    assert last.to_dict() == pytest.approx(expected, rel=1e-5)
    assert set(table["task"]) == {"digits"}
    assert run.records[-1].tasks["digits"].metric == pytest.approx(expected["accuracy"])
    assert run.frame("macro_f1")["digits"].iloc[-1] == pytest.approx(expected["macro_f1"])
    np.testing.assert_array_equal(run.confusion("digits"), sklearn.confusion_matrix(y, guess))


def test_auc_of_labels_with_ties_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores, labels = rng.integers(0, 5, (60, 3)).astype(float), rng.integers(0, 2, (60, 3))
    expected = sklearn.roc_auc_score(labels, scores)
    assert measured(AUC(), torch.tensor(scores), torch.tensor(labels)) == pytest.approx(expected)
    one = sklearn.roc_auc_score(labels[:, 0], scores[:, 0])
    for shape in ((60,), (60, 1)):
        outputs, targets = torch.tensor(scores[:, 0]).reshape(shape), torch.tensor(labels[:, 0])
        assert measured(AUC(), outputs, targets) == pytest.approx(one)
    two = torch.tensor(np.stack([-scores[:, 0], scores[:, 0]], 1))
    assert measured(AUC(), two, torch.tensor(labels[:, 0])) == pytest.approx(one)
    assert np.isnan(measured(AUC(), two * np.nan, torch.tensor(labels[:, 0])))


def test_metrics_of_tokens_are_those_of_all_tokens_together():
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(20, 6, 5, generator=generator)
    targets = torch.randint(0, 4, (20, 6), generator=generator)  # the last class never occurs
    y, guess, flat = targets.flatten().numpy(), outputs.argmax(-1).flatten().numpy(), outputs.flatten(0, 1)
    assert measured(MacroF1(), outputs, targets) == pytest.approx(sklearn.f1_score(y, guess, average="macro"))
    loss = float(nn.functional.cross_entropy(flat, targets.flatten()))
    assert measured(Perplexity(), outputs, targets) == pytest.approx(np.exp(loss))
    matrix = Confusion().value(Confusion().total(outputs, targets))
    np.testing.assert_array_equal(matrix, sklearn.confusion_matrix(y, guess, labels=range(5)))
    assert torch.equal(Confusion().statistics(outputs, targets).sum(0), matrix.flatten())
    chance = flat.double().softmax(-1).numpy()
    each = [sklearn.roc_auc_score(y == label, chance[:, label]) for label in range(4)]
    assert measured(AUC(), outputs, targets) == pytest.approx(np.mean(each))


@pytest.mark.parametrize("ignored", [-100, 0])
def test_targets_that_are_ignored_count_in_no_metric(ignored):
    torch.manual_seed(0)
    outputs, targets = torch.randn(30, 4, 5), torch.randint(1, 5, (30, 4))
    padded = torch.where(torch.rand(30, 4) < 0.4, ignored, targets)
    counted = padded != ignored
    for kind in (MacroF1, BalancedAccuracy, Perplexity, AUC):
        tokens = measured(kind(), outputs[counted], targets[counted])
        assert measured(kind(ignore_index=ignored), outputs, padded) == pytest.approx(tokens)
        assert measured(kind(), outputs, targets) != pytest.approx(tokens)
    table = Confusion(ignore_index=ignored)
    expected = table.value(table.total(outputs[counted], targets[counted]))
    assert torch.equal(table.value(table.total(outputs, padded)), expected)
    assert torch.equal(table.value(table.statistics(outputs, padded).sum(0)).double(), expected)
    share = TopK(2, ignore_index=ignored)(outputs, padded)
    assert share[0] == pytest.approx(float(TopK(2)(outputs[0][counted[0]], targets[0][counted[0]]).mean()))


def test_ignored_examples_do_not_count_in_the_mean_of_a_run():
    digits = mmfl.data.digits()
    y = digits.y_test.clone()
    y[::2] = -100
    data = mmfl.data.from_arrays(digits.x, digits.y, test=(digits.x_test, y))
    task = mmfl.Task("a", mmfl.models.LogisticRegression, data, lr=0.5, metrics=[TopK(1)])
    run = mmfl.train(mmfl.Federation([task], clients=10), "full", rounds=5)
    with torch.no_grad():
        right = run.module("a")(digits.x_test[1::2]).argmax(1) == digits.y_test[1::2]
    assert run.metrics["value"].tail(2).tolist() == pytest.approx([float(right.float().mean())] * 2)
    with pytest.raises(ValueError, match="cannot ignore targets"):
        measured(AUC(), torch.zeros(9, 1), torch.full((9, 1), -100.0))


def test_root_mean_squared_error_is_that_of_scikit_learn_and_lower_is_better():
    outputs, targets = torch.arange(12.0).reshape(12, 1), torch.arange(12.0).flip(0)
    expected = sklearn.root_mean_squared_error(targets, outputs[:, 0])
    assert measured(RootMeanSquaredError(), outputs, targets) == pytest.approx(expected)
    made = toy_task(metrics={"half": squared_error, "rmse": "rmse", "f1": "macro_f1"}, metric="perplexity")
    lower = {name: metric.lower_is_better for name, metric in made.all_metrics.items()}
    assert lower == {"perplexity": True, "half": True, "rmse": True, "f1": False}


def test_a_metric_that_is_undefined_is_said_to_be():
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 4
    one_class = mmfl.data.from_arrays(x, y, test=(x[::4], y[::4]))
    task = toy_task(data=one_class, metrics=["auc"])
    run = mmfl.train(mmfl.Federation([task], clients=4), "full", rounds=2, rate=1.0)
    assert run.records[-1].tasks["toy"].metrics == {
        "accuracy": pytest.approx(run.accuracy["toy"].iloc[-1]),
        "auc": None,
    }
    assert run.metrics[run.metrics["metric"] == "auc"]["value"].isna().tolist() == [True, True]
    assert tables.results(mmfl.Comparison([run]))["all test metrics: last tested round"]["auc"].tolist() == [
        "undefined"
    ]
    alone = mmfl.train(mmfl.Federation([toy_task(data=one_class, metric="auc")], clients=4), "full", rounds=1, rate=1.0)
    assert alone.records[-1].tasks["toy"].metric is None
    assert tables.results(mmfl.Comparison([alone]))["all test metrics: last tested round"]["auc"].tolist() == [
        "undefined"
    ]


def test_names_are_those_of_functions_classes_and_tables():
    def close(outputs, targets):
        return (outputs[:, 0] > 0).float()

    made = toy_task(metric=lambda o, y: o[:, 0], metrics=[close, AUC, TopK(2), MacroF1(), Tally()])
    assert list(made.all_metrics) == ["metric", "close", "auc", "top_2", "macro_f1", "Tally"]
    made.check()


class Tally:
    """An object in the manner of torchmetrics: counts what it has seen."""

    higher_is_better = False

    def __init__(self):
        self.seen = 0

    def reset(self):
        self.seen = 0

    def update(self, outputs, targets):
        assert len(outputs) == len(targets)
        self.seen += len(targets)

    def compute(self):
        return self.seen


def test_an_object_in_the_manner_of_torchmetrics_sees_every_test_example_once_a_round():
    run = mmfl.train(mmfl.Federation([toy_task(metrics={"seen": Tally()})], clients=4), "full", rounds=3, rate=1.0)
    assert run.frame("seen")["toy"].tolist() == [15.0] * 3
    assert toy_task(metrics=[Tally()]).all_metrics["Tally"].lower_is_better


def test_metrics_of_torchmetrics_are_used_as_they_are():
    classification = pytest.importorskip("torchmetrics").classification
    own = {"theirs": classification.MulticlassF1Score(4, average="macro"), "ours": "macro_f1"}
    own["matrix"] = classification.MulticlassConfusionMatrix(4)
    run = mmfl.train(mmfl.Federation([toy_task(metrics=own)], clients=4), "full", rounds=2, rate=1.0)
    last = run.metrics[run.metrics["round"] == 2].set_index("metric")["value"]
    assert last["theirs"] == pytest.approx(last["ours"])
    assert run.confusion("toy", "matrix").to_numpy().sum() == 15


class Sloppy(AdditiveMetric):
    """Forgets that sums may be of several clients."""

    name = "sloppy"

    def statistics(self, outputs, targets):
        return outputs

    def value(self, sums):
        return sums.sum()


class Coupled(Sloppy):
    """The numbers of an example depend on the others."""

    def statistics(self, outputs, targets):
        return outputs - outputs.mean(0)

    def value(self, sums):
        return sums.sum(-1)


@refusals(
    (lambda: toy_task(metric="macro-f1"), "unknown metric 'macro-f1'", "did you mean 'macro_f1'?"),
    (lambda: toy_task(metrics=["top-k"]), "unknown metric 'top-k'", "did you mean 'top_k'?"),
    (lambda: toy_task(metrics="auc"), "'toy'", "metrics is 'auc'", "a list of metrics"),
    (lambda: toy_task(metrics=[3]), "metric is 3", "a function of (outputs, targets)"),
    (lambda: toy_task(metrics=[{"name": "top_k", "n": 3}]), "metric 'top_k'", "unknown option 'n'"),
    (
        lambda: toy_task(metrics=[{"name": "accuracy", "k": 3}]),
        "metric 'accuracy'",
        "unknown option 'k'",
        "ignore_index",
    ),
    (lambda: toy_task(metrics=[TopK(0)]), "metric 'top_k': k is 0"),
    (lambda: toy_task(metrics=["auc", "auc"]), "'toy'", "two metrics are named 'auc'"),
    (lambda: toy_task(metrics=["accuracy"]), "two metrics are named 'accuracy'"),
    (lambda: toy_task(metrics={"loss": "auc"}), "metric 'loss'", "reserved for a column"),
    (lambda: toy_task(metrics={"client_mean": "auc"}), "metric 'client_mean'", "reserved for a column"),
    (lambda: toy_task(metrics={"a\nb": "auc"}), "'a\\nb'", "line break"),
    (lambda: toy_task(metrics=[lambda o, y: o]), "'toy'", "a metric has no name"),
    (lambda: toy_task(metrics=[TopK(5)]).check(), "metric 'top_5' fails", "at least 5 classes; the model has 4"),
    (lambda: toy_task(metric="confusion").check(), "the metric 'confusion' is a table", "metrics=[...]"),
    (lambda: toy_task(metrics=[Sloppy()]).check(), "metric 'sloppy' fails"),
    (lambda: toy_task(metrics=[Coupled()]).check(), "metric 'sloppy' of an example changes with the other examples"),
    (lambda: toy_task(metrics={"mine": lambda o, y: o.mean()}).check(), "the metric 'mine' gives", "one value per"),
    (
        lambda: toy_task(model=partial(nn.Linear, 3, 1), loss=squared_error, metric="macro_f1").check(),
        "the metric fails",
        "macro_f1 needs scores per class",
    ),
    (
        lambda: toy_task(
            model=partial(nn.Linear, 3, 1), loss=squared_error, metric=squared_error, metrics=[MacroF1]
        ).check(),
        "the metric 'macro_f1' fails",
    ),
    (
        lambda: toy_task(model=partial(nn.Linear, 3, 1001), metrics=["confusion"]).check(),
        "a confusion matrix of 1,001 classes is too large",
    ),
)
def test_a_metric_that_cannot_be_is_refused(make, words):
    with refused(*words):
        make()


def test_a_metric_that_fails_on_later_examples_is_named():
    def picky(outputs, targets):
        if len(targets) > 10:
            raise ValueError("too many for me")
        return outputs[:, 0]

    with refused("task 'toy': metric 'picky' fails on the test examples: too many for me"):
        mmfl.train(mmfl.Federation([toy_task(metrics=[picky])], clients=4), "full", rounds=1, rate=1.0)
