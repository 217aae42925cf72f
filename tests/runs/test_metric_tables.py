"""Metrics of a run by client, and what its directory keeps of them."""

import numpy as np
import pytest

import mmfl
from conftest import refused, toy_task
from mmfl.engine import Simulation
from mmfl.report import tables
from mmfl.report.metrics import client_distribution
from mmfl.runs import config
from mmfl.runs.experiment import conduct
from mmfl.runs.layout import TESTED

CLIENTS = 12


def federation(**options) -> mmfl.Federation:
    """Twelve clients with test examples of their own, and a task that has a shared test set."""
    rng = np.random.default_rng(0)
    owner = np.repeat([f"client-{n:02}" for n in range(CLIENTS)], 10)
    x = rng.normal(size=(len(owner), 3))
    owned = mmfl.data.from_arrays(x, np.argmax(x, axis=1), owner, test_share=0.4)
    tasks = [toy_task("owned", 3, data=owned, lr=0.5, metrics=["macro_f1", "confusion"], **options), toy_task("shared")]
    return mmfl.Federation(tasks)


def compared(directory=None, rounds=4, **options) -> mmfl.Comparison:
    return mmfl.compare(federation(), ["random", "full"], rounds, 0.5, directory=directory, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("metrics") / "run"
    return compared(place, checkpoint_every=2), place


def test_the_spread_over_clients_is_that_of_the_values_of_each(run):
    last = run[0].runs[0]
    table, spread = last.client_metric("owned"), last.records[-1].tasks["owned"].clients
    assert table.index.tolist() == list(range(CLIENTS))
    assert table["name"].tolist() == [f"client-{n:02}" for n in range(CLIENTS)]
    assert table["examples"].tolist() == [4] * CLIENTS
    values = np.sort(table["value"])
    assert (spread.clients, spread.undefined) == (CLIENTS, 0)
    assert spread.mean == pytest.approx(values.mean()) == pytest.approx(last.accuracy["owned"].iloc[-1])
    assert spread.worst_tenth == pytest.approx(values[:2].mean())  # a tenth of twelve, rounded up
    assert spread.deviation == pytest.approx(values.std())
    assert (spread.least, spread.median, spread.most) == pytest.approx((values[0], np.median(values), values[-1]))
    assert spread.fairness == pytest.approx(values.sum() ** 2 / (CLIENTS * (values**2).sum()))
    assert last.frame("client_worst_tenth")["owned"].iloc[-1] == spread.worst_tenth
    assert last.records[-1].tasks["shared"].clients is None


def test_the_worst_tenth_of_an_error_has_the_highest_values_and_negative_values_no_fairness():
    def miss(outputs, targets):
        return (outputs.argmax(1) != targets).float() - 0.5

    miss.lower_is_better = True
    last = mmfl.train(federation(metric=miss), "random", 2, 0.5)
    values, spread = np.sort(last.client_metric("owned")["value"]), last.records[-1].tasks["owned"].clients
    assert values[0] < 0 < values[-1]
    assert spread.worst_tenth == pytest.approx(values[-2:].mean())
    assert spread.fairness is None


def test_clients_whose_auc_is_undefined_are_counted_and_left_out():
    x, y = np.random.default_rng(0).normal(size=(24, 3)), np.tile([0, 1, 2, 2], 6)
    owner, y[16:] = np.repeat([0, 1, 2], 8), 1
    data = mmfl.data.from_arrays(x, y, owner, test=(x, y, owner))
    last = mmfl.train(mmfl.Federation([toy_task(classes=3, data=data, metric="auc")]), "full", 1, 1.0)
    spread, values = last.records[-1].tasks["toy"].clients, last.client_metric("toy")["value"]
    assert (spread.clients, spread.undefined) == (2, 1)
    assert values.isna().tolist() == [False, False, True]
    assert spread.mean == pytest.approx(values.mean())


def test_tables_over_methods_average_what_runs_recorded(run):
    comparison = run[0]
    table, clients = comparison.metrics(window=1), comparison.clients(window=1)
    for each in comparison:
        last = each.records[-1].tasks["owned"]
        assert table.loc[each.method, ("owned", "macro_f1")] == pytest.approx(last.metrics["macro_f1"])
        assert clients.loc[(each.method, "owned"), "worst_tenth"] == pytest.approx(last.clients.worst_tenth)
    assert clients.index.unique("task").tolist() == ["owned"]
    plain = mmfl.compare(
        mmfl.Federation([toy_task("owned", metrics=["auc"]), toy_task("shared")], 4), ["mmfl-lvr"], 1, 1.0
    )
    assert plain.clients().empty
    shown = tables.results(mmfl.Comparison([*comparison, *plain]))["all test metrics: last tested round"]
    assert (shown["auc"] == "").tolist() == [True, True, False]  # not recorded, which is not the same as undefined


def test_a_run_that_is_read_or_resumed_has_the_same_values(run, tmp_path):
    comparison, place = run
    loaded = mmfl.load(place)
    again = compared(place, resume=True)
    broken_off = compared(tmp_path / "run", rounds=2, checkpoint_every=2)
    resumed = compared(tmp_path / "run", resume=True)
    for mine, other, third, fourth in zip(comparison, loaded, again, resumed, strict=True):
        for each in (other, third, fourth):
            assert each.client_metric("owned").equals(mine.client_metric("owned"))
            assert each.confusion("owned").equals(mine.confusion("owned"))
            assert each.metrics.equals(mine.metrics)
    assert not broken_off.runs[0].confusion("owned").equals(comparison.runs[0].confusion("owned"))


def test_what_is_not_there_is_refused_in_a_line(run, tmp_path):
    each = run[0].runs[0]
    with refused("task 'shared'", "belong to no clients"):
        each.client_metric("shared")
    with refused("unknown task 'own'", "did you mean 'owned'?"):
        each.client_metric("own")
    with refused("task 'shared' has no table 'confusion'", 'metrics=["confusion"]'):
        each.confusion("shared")
    with refused("task 'owned' has no table 'confusions'", "did you mean 'confusion'?"):
        each.confusion("owned", "confusions")
    compared(tmp_path / "run", rounds=1)
    (tmp_path / "run" / TESTED).write_text("[]")
    with refused(TESTED, "cannot be read"):
        mmfl.load(tmp_path / "run")
    (tmp_path / "run" / TESTED).unlink()
    assert len(mmfl.load(tmp_path / "run")) == 2


CONFIG = """
rounds = 2
method = "full"
[federation]
clients = 5
[[tasks]]
name = "digits"
data = "digits"
model = "logistic"
metric = "own.Hits"
metrics = ["macro_f1", { name = "top_k", k = 3 }]
[[tasks]]
name = "named"
data = "digits"
model = "logistic"
metrics = { roc = "auc", wrong = "own.wrong" }
"""
OWN = """
import mmfl

class Hits(mmfl.metrics.AdditiveMetric):
    name = "hits"

    def statistics(self, outputs, targets):
        return (outputs.argmax(1) == targets)[:, None].float()

    def value(self, sums):
        return sums[..., 0]

def wrong(outputs, targets):
    return (outputs.argmax(1) != targets).float()
"""


def test_a_configuration_names_metrics_and_tables_show_them(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "experiment.toml").write_text(CONFIG)
    read = config.read(tmp_path / "experiment.toml")
    assert config.parse(read.plain(), "again") == read
    comparison = conduct(read.experiment(), Simulation("cpu", "sequential"))
    tasks = comparison.runs[0].records[-1].tasks
    assert list(tasks["digits"].metrics) == ["hits", "macro_f1", "top_3"]
    assert tasks["digits"].metric == tasks["digits"].metrics["hits"] > 1
    named = tasks["named"].metrics
    assert list(named) == ["accuracy", "roc", "wrong"]
    assert named["accuracy"] + named["wrong"] == pytest.approx(1)
    shown = tables.results(comparison)["all test metrics: last tested round"]
    assert shown["roc"].tolist() == ["", f"{named['roc']:.3f}"]


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ('["macro_f2"]', ["unknown metric 'macro_f2'", "did you mean 'macro_f1'?"]),
        ("[{ k = 3 }]", ["metric", "needs a 'name'"]),
        ("3", ["tasks.digits.metrics' is 3"]),
        ("[3]", ["tasks.digits.metrics.0' is 3"]),
    ],
)
def test_a_configuration_with_wrong_metrics_is_refused_by_its_place(metrics, words, tmp_path):
    (tmp_path / "experiment.toml").write_text(CONFIG.replace('["macro_f1", { name = "top_k", k = 3 }]', metrics))
    (tmp_path / "own.py").write_text(OWN)
    with refused(*words):
        config.read(tmp_path / "experiment.toml").experiment()


def test_clients_that_are_owners_are_named_wherever_their_metric_is(run, tmp_path):
    """In memory, read again from the directory, and in the report's table; whether owners have names or numbers."""
    here, place = run
    loaded = mmfl.load(place).runs[0]
    assert loaded.client_metric("owned").equals(here.runs[0].client_metric("owned"))
    shown = client_distribution(here).table
    assert set(zip(shown["client"], shown["name"], strict=True)) == {(n, f"client-{n:02}") for n in range(CLIENTS)}

    x = np.random.default_rng(0).normal(size=(40, 3))
    owned = mmfl.data.from_arrays(x, np.argmax(x, axis=1), np.repeat([7, 30, 4, 12], 10), test_share=0.4)
    last = mmfl.train(mmfl.Federation([toy_task("toy", 3, data=owned)]), "full", 1)
    assert last.client_metric("toy")["name"].tolist() == [4, 7, 12, 30]
