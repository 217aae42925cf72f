"""The tables of a sweep, against the runs that they summarise."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import mmfl
from conftest import refused, toy_task
from mmfl.report.sweep_figures import figures


@pytest.fixture(scope="module")
def swept():
    def federation(lr):
        return mmfl.Federation([toy_task(lr=lr), toy_task("other", lr=0.2)], 4)

    return mmfl.sweep(federation, {"lr": [0.01, 0.1, 1.0], "rate": [0.5, 1.0]}, ["random", "full"], rounds=3, seeds=3)


def test_the_table_has_mean_and_deviation_over_seeds_for_every_point_and_method(swept):
    table = swept.table()
    assert len(table) == 3 * 2 * 2
    row = table[(table["lr"] == 0.1) & (table["rate"] == 1.0) & (table["method"] == "full")].iloc[0]
    runs = swept.at({"lr": 0.1, "rate": 1.0}).of("full")
    for name in ("toy", "other", "mean", "worst"):
        finals = [run.final()[name] for run in runs]
        assert row[name] == pytest.approx(np.mean(finals))
        assert row[f"{name}_spread"] == pytest.approx(np.std(finals, ddof=1))
    assert len(swept.finals()) == 3 * 2 * 2 * 3
    assert swept.to_json()[0]["mean_spread"] == pytest.approx(table["mean_spread"][0])


def test_the_best_of_a_task_is_the_highest_or_the_lowest_metric(swept):
    table, best = swept.table(), swept.best()
    assert best.index.tolist() == ["toy", "other", "mean", "worst"]
    assert best.loc["toy", "metric"] == table["toy"].max()
    row = table.loc[table["toy"].idxmax()]
    assert best.loc["toy", ["lr", "rate", "method"]].tolist() == row[["lr", "rate", "method"]].tolist()
    flipped = mmfl.Sweep(swept.grid, swept.methods, swept.runs, {}, ["toy"])
    assert flipped.best().loc["toy", "metric"] == table["toy"].min()
    assert flipped.best().loc["mean", "metric"] == table["mean"].max()
    errors = mmfl.Sweep(swept.grid, swept.methods, swept.runs, {}, ["toy", "other"])
    assert errors.best().loc["mean", "metric"] == table["mean"].min()


def test_a_task_measured_by_an_error_has_its_lowest_value_as_best(tmp_path):
    def federation(lr):
        x = np.linspace(-1, 1, 60, dtype=np.float32)[:, None]
        task = mmfl.Task(
            "line",
            lambda: mmfl.models.LogisticRegression(inputs=1, classes=1),
            mmfl.data.from_arrays(x, 2 * x[:, 0], test_share=0.2),
            lr=lr,
            loss=mmfl.objectives.squared_error,
            metric=mmfl.objectives.absolute_error,
        )
        return mmfl.Federation([task], 4)

    mmfl.sweep(federation, {"lr": [0.001, 0.5]}, ["full"], rounds=10, directory=tmp_path)
    best = mmfl.load_sweep(tmp_path).best()
    assert best["lr"].tolist() == [0.5, 0.5, 0.5]


def test_a_best_value_at_the_end_of_three_or_more_is_noted(swept):
    assert swept.best().loc["mean", "lr"] == 1.0
    assert swept.edges() == ["the best lr, 1.0, is the largest that was tried"]


def test_values_may_be_lists_and_names(tmp_path):
    grid = {"federation.capacity": [1, [1, 2], "mixed"], "federation.partition": ["iid", {"name": "labels"}]}
    settings = {"rounds": 1, "seeds": 1}
    swept = mmfl.sweep("demo", grid, ["random"], directory=tmp_path, **settings)
    again = mmfl.load_sweep(tmp_path)
    pd.testing.assert_frame_equal(again.table(), swept.table())
    assert len(swept.at({"federation.capacity": [1, 2], "federation.partition": {"name": "labels"}})) == 1


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"lr": 0.1}, ["'rate' is not given; expected one of: 0.5, 1.0"]),
        ({"lr": 0.2, "rate": 0.5}, ["'lr' is 0.2; expected one of: 0.01, 0.1, 1.0"]),
        ({"lr": 0.1, "rat": 0.5}, ["'rat' was not swept: did you mean 'rate'?"]),
    ],
)
def test_a_point_that_was_not_trained_is_refused(swept, point, words):
    with refused(*words):
        swept.at(point)


def test_what_is_no_sweep_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # long names of folders are cut in messages
    with refused("is not the directory of a sweep"):
        mmfl.load_sweep(".")
    Path("sweep.toml").write_text("grid = 3 = 4")
    with refused("sweep.toml cannot be read"):
        mmfl.load_sweep(".")
    Path("sweep.toml").write_text("format = 9")
    with refused("its format is version 9"):
        mmfl.load_sweep(".")


def test_whole_numbers_beside_others_in_a_grid_keep_their_results():
    pool = mmfl.Federation([toy_task()], 4)
    found = mmfl.sweep(pool, {"rate": [0.5, 1], "evaluate_every": [1, 2]}, ["random"], rounds=2)
    assert found.table()["mean"].notna().all()
    assert found.best()["rate"].isin([0.5, 1]).all()
    assert all(np.isfinite(panel.marks[0].values).all() for each in figures(found) for panel in each.panels)
