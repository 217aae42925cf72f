"""The gain of training together: how it is counted, what is concluded from it, and the quick forms."""

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot
from shared import FAILS, HOLDS, OPEN, quick

from conftest import refused, toy_task
from mmfl import Federation, compare
from mmfl.data.faces import ATTRIBUTES
from mmfl.papers.mfa import gain as figures
from mmfl.papers.mfa import gain_tables as tables
from mmfl.papers.mfa import goals
from mmfl.papers.mfa import tasks as mfa_tasks
from mmfl.record import RoundRecord, TaskRecord
from mmfl.runs import config
from mmfl.runs.listener import RunInfo, StopRequest
from mmfl.runs.presets import path_of

CATALOGUE = {made.id: made for made in (*figures.REPRODUCTIONS, *tables.REPRODUCTIONS)}
FIND_FULL, FIND_PARTIAL = (CATALOGUE[name].find for name in ("mfa-fig3", "mfa-fig4"))


# --- how rounds are counted ---


def baseline(*tasks: list[float], seeds=(0,)) -> goals.Curves:
    """FedAvg's accuracies, a list per task, the same for every seed."""
    curves = pd.DataFrame({f"task {n}": values for n, values in enumerate(tasks)}, index=range(1, len(tasks[0]) + 1))
    return dict.fromkeys(seeds, curves)


def record(t: int, *accuracies: float, method="mfa-rr", seed=0) -> RoundRecord:
    tasks = {f"task {n}": TaskRecord(metric=value) for n, value in enumerate(accuracies)}
    return RoundRecord(t, method, seed, tasks=tasks)


def begun(fedavg: goals.Curves) -> tuple[goals.GoalListener, StopRequest]:
    """A listener before its first round, and whether it has asked to stop."""
    listener, stop = goals.GoalListener(fedavg), StopRequest()
    listener.begin(RunInfo(["mfa-rr"], list(fedavg), ["task 0"], 4, 1.0, 9, stop=stop))
    return listener, stop


def followed(fedavg: goals.Curves, *tasks: list[float]) -> goals.GoalListener:
    """A listener that was told these accuracies, a list per task, until it asks to stop."""
    listener, stop = begun(fedavg)
    for t, accuracies in enumerate(zip(*tasks, strict=True), 1):
        if not stop.asked:
            listener.round([record(t, *accuracies)])
    return listener


def gains(listener: goals.GoalListener) -> pd.DataFrame:
    """Both ways to count them, a row each."""
    return pd.concat(reversed(goals.smoothed_and_single(listener.gains())))


def test_fedavg_needs_the_rounds_until_it_first_was_as_good_as_in_the_end():
    curve = pd.DataFrame({"a": [0.1, 0.6, 0.2, 0.4, 0.4], "b": [0.1, 0.2, 0.3, 0.4, 0.5]}, index=range(1, 6))
    single, pairs = goals.Goal.of(curve, 1), goals.Goal.of(curve, 2)
    assert single.rounds.tolist() == [2, 5]
    assert single.accuracy.tolist() == [0.4, 0.5]
    assert pairs.rounds.tolist() == [3, 5]
    assert pairs.accuracy.tolist() == pytest.approx([0.4, 0.45])


def test_all_tasks_must_be_as_good_in_the_same_round():
    fedavg = baseline([0.1, 0.5], [0.1, 0.5])
    listener = followed(fedavg, [0.6, 0.2, 0.5, 0.9, 0.9], [0.2, 0.6, 0.5, 0.9, 0.9])
    assert listener.met[("mfa-rr", 0, 1)] == 3
    assert listener.met[("mfa-rr", 0, 2)] == 2  # means of two rounds: 0.4 both, and FedAvg's 0.3
    assert len(listener.accuracies[("mfa-rr", 0)]) == 3  # the run is over


def test_training_together_goes_on_until_every_method_and_seed_has_met_both_goals():
    listener, stop = begun(baseline([0.1, 0.5], seeds=(0, 1)))
    for t in (1, 2, 3):
        listener.round([record(t, 0.9, seed=0), record(t, 0.1 * t, seed=1)])
    assert not stop.asked
    listener.round([record(4, 0.9, seed=0), record(4, 0.5, seed=1)])
    assert (stop.asked, stop.end.reason) == (True, "all goals are met")
    assert listener.met == {("mfa-rr", 0, 1): 1, ("mfa-rr", 0, 2): 2, ("mfa-rr", 1, 1): 4, ("mfa-rr", 1, 2): 4}


def test_gains_count_both_sides_in_the_same_way_and_as_published():
    fedavg = baseline([0.4, 0.5, 0.2, 0.4], [0.1, 0.2, 0.3, 0.4])
    found = gains(followed(fedavg, [0.5] * 6, [0.1, 0.2, 0.3, 0.3, 0.4, 0.4])).set_index("window")
    assert found.loc[1, ["models", "published", "alone", "together"]].tolist() == [2, 8, 1 + 4, 5]
    assert found.loc[1, ["gain", "published_gain"]].tolist() == [1.0, 1.6]
    assert found.loc[2, "alone"] == 2 + 4
    assert found.loc[2, "together"] == 5


def test_a_goal_that_is_not_met_leaves_a_gain_below_one():
    found = gains(followed(baseline([0.1, 0.5], [0.1, 0.5]), [0.9] * 4, [0.1] * 4))
    assert found["together"].isna().all()
    assert found["alone"].tolist() == [4, 4]
    assert found["gain"].tolist() == [4 / 5, 4 / 5]
    assert goals.format_gain(found, "gain") == "at most 0.800"


def test_tasks_are_shown_as_they_were_when_all_had_met_the_goals():
    fedavg = baseline([0.1, 0.5], [0.1, 0.3])
    shown = followed(fedavg, [0.1, 0.5, 0.7, 0.9], [0.1, 0.2, 0.3, 0.9]).tasks().set_index(["window", "task"])
    assert shown.loc[1, "alone"].tolist() == [0.5, 0.3]
    assert shown.loc[1, "together"].tolist() == [0.7, 0.3]  # round 3
    assert shown.loc[2, "together"].tolist() == pytest.approx([0.6, 0.25])
    at_once = followed(baseline([0.1, 0.5]), [0.0, 0.5, 0.0, 0.9]).tasks().set_index("window")
    assert at_once["together"].to_dict() == pytest.approx({1: 0.5, 2: 0.45})  # rounds 2 and 4
    never = followed(fedavg, [0.1, 0.2], [0.1, 0.2]).tasks().set_index(["window", "task"])
    assert never.loc[1, "together"].tolist() == [0.2, 0.2]


def test_the_worst_model_is_that_of_least_mean_accuracy():
    one = pd.DataFrame({"a": [0.0, 1.0, 1.0], "b": [0.6, 0.6, 0.2]}, index=[1, 2, 3])
    other = one + 0.2
    assert goals.worst([one, other], 2).to_dict() == pytest.approx({2: 0.6, 3: 0.5})


def test_a_thinned_curve_keeps_every_tenth_of_t1_and_its_end():
    curve = pd.Series(0.5, index=range(4, 48))
    assert figures.thin_out(curve, 100)["round"].tolist() == [10, 20, 30, 40, 47]


# --- the tasks ---


def test_full_participation_is_fedavg_on_every_task_and_so_is_mfa_rr_of_one():
    tasks = [toy_task("a", batch_size=5), toy_task("b", batch_size=5)]
    pair = compare(Federation(tasks, 6), ["full"], 4, 1.0).runs[0].accuracy["a"]
    for method in ("multi-fedavg", "mfa-rr"):
        single = compare(Federation(tasks[:1], 6), [method], 4, 1.0).runs[0].accuracy["a"]
        assert single.tolist() == pytest.approx(pair.tolist())


def test_a_task_tested_on_its_training_examples_has_the_same_weights():
    task = mfa_tasks.small_face("Blond_Hair")
    shown, hidden = (
        compare(mfa_tasks.with_shared_clients([each], 24), ["mfa-rr"], 3, 0.5).runs[0]
        for each in (task, mfa_tasks.with_training_examples_as_test(task))
    )
    assert torch.equal(shown.weights[0], hidden.weights[0])
    with torch.no_grad():
        right = shown.module(task.name)(task.data.x.float() / 255).argmax(1) == task.data.y
    assert hidden.accuracy[task.name].iloc[-1] == pytest.approx(right.float().mean().item())


def test_a_client_is_the_same_person_in_every_task():
    tasks = mfa_tasks.copies(mfa_tasks.small_face("Blond_Hair"), 2)
    first, other = (mfa_tasks.with_shared_clients(tasks, 5)(seed) for seed in (0, 1))
    assert first.shards[0].index.tolist() == first.shards[1].index.tolist()
    assert first.shards[0].index.tolist() != other.shards[0].index.tolist()


def test_celeba_takes_the_place_of_generated_faces_where_there_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MMFL_DATA", str(tmp_path))
    generated = [task.data.name for task in mfa_tasks.faces()]
    assert generated == [f"generated faces, {attribute}" for attribute in ATTRIBUTES]
    (tmp_path / "celeba").mkdir()
    with refused("celeba", "img_align_celeba"):
        mfa_tasks.faces()


def test_celeba_has_the_attributes_of_table_5():
    tasks = config.read(path_of("mfa-faces"), mfa_tasks.celeba_settings()).tasks
    assert [task.name for task in tasks] == list(tables.TABLE5.accuracies)
    assert [task.data["attribute"] for task in tasks] == list(mfa_tasks.ATTRIBUTES)
    assert {(task.data["name"], task.model) for task in tasks} == {("celeba", "celeba-cnn")}


def test_the_two_synthetic_sets():
    first, second = (mfa_tasks.synthetic(number, clients=20, cap=60) for number in (0, 1))
    assert (first.data.x.shape[1], int(first.data.y.max()) + 1) == (60, 5)
    assert (second.data.x.shape[1], int(second.data.y.max()) + 1) == (30, 10)
    assert first.data.owners == 20


# --- what is concluded ---


def measured(together: dict[int, list[float]], alone=70, method="mfa-rr", name="made up") -> pd.DataFrame:
    """Gains of so many rounds together by M, a list over seeds; both ways of counting agree."""
    lines = [
        {"method": method, "seed": seed, "window": window, "models": models, "published": models * 70,
         "alone": models * alone, "together": rounds, "data": name}
        for models, values in together.items()
        for seed, rounds in enumerate(values)
        for window in (1, 7)
    ]  # fmt: skip
    return pd.DataFrame(lines)


@pytest.mark.parametrize(
    ("together", "alone", "expected"),
    [
        ({2: [80, 82, 78], 10: [150, 160, 140]}, 70, [HOLDS, HOLDS, HOLDS]),
        ({2: [139, 150, 120], 10: [150, 160, 140]}, 70, [OPEN, HOLDS, HOLDS]),
        ({2: [80, 82, 78], 10: [600, 610, 590]}, 70, [HOLDS, FAILS, HOLDS]),
        ({2: [80, 82, 78], 10: [68, 66, 67]}, 70, [HOLDS, HOLDS, FAILS]),
        ({2: [80, 82, 78], 10: [150, 160, 140]}, 20, [FAILS, HOLDS, HOLDS]),  # FedAvg had it much earlier
        ({2: [80, 82, 78], 10: [np.nan] * 3}, 70, [FAILS, FAILS, HOLDS]),
        ({2: [np.nan] * 3, 10: [np.nan] * 3}, 70, [FAILS, OPEN, HOLDS]),
        ({2: [80], 10: [150]}, 70, [OPEN, OPEN, OPEN]),
    ],
)
def test_the_claims_about_gains(together, alone, expected):
    assert [claim.verdict for claim in FIND_FULL({"gains": measured(together, alone)}).claims] == expected


def test_claims_rest_on_means_over_rounds_and_single_rounds_count_as_published():
    gains = measured({2: [80, 82, 78]})
    gains.loc[gains["window"] == 1, "together"] = 200
    found = FIND_PARTIAL({"gains": gains})
    assert [claim.verdict for claim in found.claims] == [HOLDS]
    columns = ["T_P", "gain", "gain as published"]
    assert found.table.loc[0, columns].tolist() == ["80.0 ± 2.0", "1.75 ± 0.04", "0.70 ± 0.00"]


def test_claims_are_about_mfa_rr_on_each_data_set_and_runs_that_never_get_there_are_counted():
    late = measured({2: [np.nan] * 2}, method="mfa-rand", name="second")
    kinds = [measured({2: [80, 82], 4: [90, 91]}, name="first"), measured({2: [70, 70]}, alone=35, name="second"), late]
    curves = [{"round": t, "accuracy": t / 100, "models": m} for m in (1, 2) for t in (10, 20)]
    curves = pd.concat([pd.DataFrame(curves).assign(data=name) for name in ("first", "second")])
    frames = {"gains": pd.concat(kinds), "curves": curves}
    found = FIND_FULL(frames)
    assert [claim.text.partition(":")[0] for claim in found.claims] == ["first", "second", "first", "first", "second"]
    assert [claim.verdict for claim in found.claims] == [HOLDS, OPEN, HOLDS, HOLDS, HOLDS]
    table = found.table.set_index(["data", "method", "M"])
    assert len(table) == 4
    even = ["35.0 ± 0.0", "70.0 ± 0.0", "1.00 ± 0.00", "2.00 ± 0.00"]
    assert table.loc["second", "mfa-rr", 2].tolist() == even
    assert table.loc["second", "mfa-rand", 2].tolist()[1:] == ["in 0 of 2", *["at most 0.99"] * 2]
    assert "2 runs did not reach" in found.notes[0]
    figure = CATALOGUE["mfa-fig3"].draw(frames)
    assert [axes.get_title() for axes in figure.axes] == ["first", "", "second", ""]
    pyplot.close(figure)


def different(together: list[float], alone=90, splits=("train", "test"), window=5) -> dict[str, pd.DataFrame]:
    """Two tasks in so many rounds by seed."""
    gains, tasks = [], []
    for split in splits:
        for seed, rounds in enumerate(together):
            key = {"method": "mfa-rr", "seed": seed, "split": split}
            for width in (1, window):
                gains.append(key | {"window": width, "models": 2, "published": 100, "alone": alone, "together": rounds})
                for task in ("eyeglasses", "bangs"):
                    line = {"window": width, "task": task, "alone": 0.7, "together": 0.75 + seed / 100}
                    tasks.append(key | line | {"data": f"generated faces, {task}"})
    return {"gains": pd.DataFrame(gains), "tasks": pd.DataFrame(tasks)}


def test_the_tables_have_the_papers_numbers_beside_ours():
    found = tables.find(tables.TABLE5, different([45, 46, 44]))
    table = found.table.set_index(["accuracy", "task"])
    assert table.loc["training", "eyeglasses"].tolist() == ["74.7", "70.0 ± 0.0", "84.6", "76.0 ± 1.0"]
    assert table.loc["test", "bangs"].tolist() == ["", "70.0 ± 0.0", "", "76.0 ± 1.0"]
    assert table.loc["training", "rounds"].tolist() == ["450", "90.0 ± 0.0", "117", "45.0 ± 1.0"]
    assert table.loc["test", "gain"].tolist()[2:] == ["3.571", "2.001 ± 0.044"]
    assert table.loc["test", "gain as published"].iloc[-1] == "2.223 ± 0.049"
    assert [(claim.paper, claim.verdict) for claim in found.claims] == [("+2.846", HOLDS), ("+2.571", HOLDS)]


def test_tables_of_gains_below_one_and_of_one_split():
    late = different([np.nan, np.nan, np.nan], splits=["test"])
    found = tables.find(tables.TABLE6, late)
    assert [claim.verdict for claim in found.claims] == [FAILS]
    assert "test accuracy: 3 seeds" in found.notes[1]
    figure = tables.draw(late)
    assert [axes.get_title() for axes in figure.axes] == ["test examples: gain at most 0.891"]
    assert len(figure.axes[0].patches) == 4
    pyplot.close(figure)
    assert [claim.verdict for claim in tables.find(tables.TABLE6, different([45])).claims] == [OPEN, OPEN]


# --- the quick forms ---


@pytest.fixture(scope="module")
def frames(tmp_path_factory) -> dict[str, dict[str, pd.DataFrame]]:
    """What was measured for each of the four in its quick form."""
    results, _ = quick(tmp_path_factory, *CATALOGUE)
    return {name: results.frames(made.parts(True)) for name, made in CATALOGUE.items()}


@pytest.mark.slow
def test_copies_train_faster_together_with_full_participation(frames):
    gains = goals.smoothed_and_single(frames["mfa-fig3"]["gains"])[0].query("method == 'mfa-rr'")
    mean = gains.groupby(["data", "models"])["gain"].mean().unstack()
    synthetic = mean[mean.index.str.startswith("Synthetic")]
    assert len(mean) == 3
    assert (synthetic[2] > 1).all()
    assert (synthetic[2] < synthetic[4]).all()


@pytest.mark.slow
def test_rounds_alone_and_together_stay_within_what_was_trained(frames):
    for name in CATALOGUE:
        gains = frames[name]["gains"]
        assert (gains["alone"] <= gains["published"]).all()
        assert (gains["together"].dropna() <= gains.loc[gains["together"].notna(), "published"]).all()
    curves = frames["mfa-fig3"]["curves"]
    assert curves.query("models == 1").groupby("data")["round"].max().to_list() == [15, 15, 12]


@pytest.mark.slow
def test_every_task_is_as_good_together_where_the_goals_were_met(frames):
    for name, tasks in (("mfa-table5", 3), ("mfa-table6", 2)):
        keys = ["split", "window", "seed"]
        both = frames[name]["tasks"].merge(
            frames[name]["gains"][[*keys, "together"]], on=keys, suffixes=("", "_rounds")
        )
        met = both.dropna(subset="together_rounds")
        assert len(met) >= tasks
        assert (met["together"] >= met["alone"] - 1e-4).all()


def test_the_full_forms_have_the_papers_sizes():
    sizes = [
        {(setting.clients, round(setting.rate * setting.clients), setting.rounds) for setting in settings}
        for settings in (figures.FULL, figures.PARTIAL)
    ]
    assert sizes == [{(100, 100, 70), (96, 96, 75)}, {(200, 32, 200), (96, 24, 75)}]
    assert tables.TABLE5.gain("train") == pytest.approx(3.846, abs=5e-4)
    assert tables.TABLE5.gain("test") == pytest.approx(3.571, abs=5e-4)
    assert tables.TABLE6.gain("train") == 2.0
    assert tables.TABLE6.gain("test") == pytest.approx(1.41, abs=5e-3)
    assert [part.rounds for part in CATALOGUE["mfa-table5"].parts(False)] == [450, 450]
