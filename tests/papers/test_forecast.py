"""The evidence for `forecast`: what is compared with what, the variants of the ablation, and the quick forms."""

import dataclasses
import math
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from shared import FAILS, HOLDS, OPEN, Short, quick, together, verdicts
from sklearn.decomposition import PCA

import mmfl
from conftest import view_of
from mmfl import compare
from mmfl.aggregation import FedVARP, Forecast
from mmfl.allocation import ExpectedResidualVariance
from mmfl.methods import Method
from mmfl.papers.forecast import ablation, costs, robustness, runs
from mmfl.papers.forecast import accuracy as table
from mmfl.papers.forecast.candidates import ChangingBias, Impatient, OwnRatio, PlainResiduals, StepUnits
from mmfl.papers.forecast.forecasts import AgedForecast, DirectedForecast, betas
from mmfl.papers.forecast.sampling import Capped, LastLoss, LastLosses
from mmfl.papers.forecast.small_networks import SETTINGS, components
from mmfl.papers.forecast.variants import VARIANTS, method
from mmfl.papers.measurements import final
from mmfl.papers.reproduction import PaperTrainer
from mmfl.runs.config import read
from mmfl.runs.presets import path_of
from mmfl.updates.expected_residuals import ExpectedResiduals

SIZES = np.array([[10, 5], [30, 0], [0, 15], [7, 12], [3, 40]])
VIEW = view_of(SIZES, [2, 1, 1, 2, 1], 2.0)
FULL = [0.8, 0.82, 0.81]


def frames_of(served: float = 0.0, **methods: list[float]) -> dict[str, pd.DataFrame]:
    """Accuracies in the last 20 of 100 rounds relative to full participation's, a list over seeds; averaged weights
    have `served` more. Everyone trains 10 clients."""
    others = {name: [0.5] * 3 for name in table.METHODS} | {"full": [1.0] * 3}
    given = others | {name.replace("_", "-"): values for name, values in methods.items()}
    lines = [
        {"method": name, "seed": seed, "round": t} | dict.fromkeys(("first", "mean"), ratio * FULL[seed] * (t > 80))
        for name, values in given.items()
        for seed, ratio in enumerate(values)
        for t in (80, 81, 100)
    ]
    current = pd.DataFrame(lines)
    more = current.assign(mean=current["mean"] + served * current["seed"].map(dict(enumerate(FULL))))
    costs = [
        {"method": name, "seed": seed, "trainings": 10.0, "forward_passes": 0.0, "bytes_down": 1e6, "bytes_up": 2e6,
         "stored_bytes": 0.0}
        for name in given
        for seed in range(3)
    ]  # fmt: skip
    return {"accuracy": current, "served": more, "costs": pd.DataFrame(costs)}


# --- the comparison with other methods ---


def test_accuracy_is_relative_to_that_of_full_participation_with_the_same_seed():
    frames = frames_of(-0.01, forecast=[0.98, 0.99, 1.0])
    assert runs.relative(frames)["forecast"].tolist() == pytest.approx([0.98, 0.99, 1.0])
    assert runs.relative(frames, "served")["forecast"].tolist() == pytest.approx([0.97, 0.98, 0.99])
    line = table.find(0.995, frames).table.set_index("method").loc["forecast"]
    assert line.tolist() == [3, "0.990 ± 0.010", "0.980 ± 0.010", "0.980", "0.980", "0.990"]


def test_averaged_weights_are_relative_to_the_better_of_full_participations_two():
    frames = frames_of(0.01, forecast=[0.98, 0.99, 1.0])
    assert runs.relative(frames)["forecast"].tolist() == pytest.approx([0.98, 0.99, 1.0])
    served = runs.relative(frames, "served")
    assert served["full"].tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert served["forecast"].tolist() == pytest.approx([0.99 / 1.01, 1.0 / 1.01, 1.0])


@pytest.mark.parametrize(
    ("ratios", "goal", "lowest", "deviation"),
    [
        ([0.9970, 0.9971, 0.9970], HOLDS, HOLDS, HOLDS),
        ([0.9902, 0.9903, 0.9901], FAILS, HOLDS, HOLDS),
        ([0.99, 0.998, 1.0], OPEN, HOLDS, OPEN),
        ([0.9, 0.98, 1.0], OPEN, FAILS, FAILS),
    ],
)
def test_goals_are_met_missed_or_open(ratios, goal, lowest, deviation):
    found = table.find(0.995, frames_of(forecast=ratios))
    assert verdicts(found, "current weights", "at most 0.5%") == [goal]
    assert verdicts(found, "current weights", "no seed ends below 0.985") == [lowest]
    assert verdicts(found, "current weights", "standard deviation") == [deviation]


def test_rivals_are_tested_together_with_the_same_kind_of_weights():
    near = [0.97, 0.981, 0.976]
    found = table.find(0.995, frames_of(forecast=[0.99, 0.991, 0.99], mifa=near))
    assert verdicts(found, "ends above random", "current") == [HOLDS]
    assert verdicts(found, "ends above mifa", "current") == verdicts(found, "ends above mifa", "averaged")
    rivals = [each.text for each in found.claims if "ends above" in each.text and "current" in each.text]
    assert len(rivals) == 6
    assert not [text for text in rivals if "above full" in text]


def test_costs_above_those_of_random_are_noticed():
    frames = frames_of(forecast=[0.99, 0.991, 0.99])
    assert verdicts(table.find(0.995, frames), "train equally often") == [HOLDS]
    ours = frames["costs"]["method"] == "forecast"
    frames["costs"].loc[ours, ["trainings", "forward_passes"]] = [11.0, 120.0]
    found = table.find(0.995, frames)
    assert [*verdicts(found, "train equally often"), *verdicts(found, "asks nothing")] == [FAILS, FAILS]


def test_a_deviation_is_judged_by_its_interval():
    def verdict(scale: float):
        values = pd.Series(np.linspace(-1, 1, 20) * scale)
        return table.deviation_below("", "", values, 0.003).verdict

    assert [verdict(scale) for scale in (0.002, 0.005, 0.01)] == [HOLDS, OPEN, FAILS]
    assert table.deviation_below("", "", pd.Series([0.5]), 0.003).verdict is OPEN


# --- parts ---


@pytest.mark.parametrize("setting", [runs.THREE, runs.FIVE])
def test_parts_of_a_method_have_all_its_seeds_once(setting):
    for name in table.METHODS:
        parts = setting.parts("folder", name, runs.published_method(name))
        seeds = [seed for part in parts for seed in part.seeds]
        assert seeds == list(range(setting.fewer.get(name, setting.seeds)))
        assert len({part.name for part in parts}) == len(parts)
    assert [part.name for part in runs.THREE.parts("f", "full", None)][:2] == ["f/full/0-4", "f/full/5-9"]
    assert runs.FIVE.parts("f", "full", None)[3].name == "f/full/3"


def test_parts_run_by_themselves_give_what_they_give_together():
    small = dataclasses.replace(runs.SMALL_THREE, rounds=4)
    names, trainer = ("random", "forecast"), PaperTrainer("cpu")
    joint = small.part("f", "all", [runs.published_method(name) for name in names], [0, 1]).run(trainer)
    alone = [
        small.part("f", name, [runs.published_method(name)], [seed]).run(trainer) for name in names for seed in (0, 1)
    ]
    for frame in ("accuracy", "served", "costs"):
        joined = pd.concat([each[frame] for each in alone], ignore_index=True)
        pd.testing.assert_frame_equal(joint[frame], joined, rtol=1e-6)


def test_the_ablation_takes_full_participation_from_the_comparison():
    parts = ablation.parts(runs.FIVE, runs.SMALL_FIVE, 3, ("no-bias",), False)
    assert [part.name for part in parts] == [
        *(f"forecast-5tasks/full/{seed}" for seed in range(3)),
        "forecast-5tasks/forecast/0-4",
        "forecast-ablation/5tasks/no-bias/0-2",
    ]


# --- the ablation ---


def test_variants_are_compared_on_the_seeds_that_all_have():
    frames = frames_of(forecast=[0.99, 0.991, 0.99], no_bias=[0.98, 0.9812], bias_1=[0.9, 0.91, 0.9])
    found = ablation.find(("no-bias", "bias-1"), frames)
    line = found.table.set_index("variant").loc["bias-1"]
    assert line["current weights"] == "0.905 ± 0.007"
    assert line["less forecast"].startswith("-0.085 ± ")
    assert [each.text for each in found.claims] == [
        "forecast ends above no-bias",
        "no-bias ends above forecast",
        "no variant asks anything of clients that are not drawn",
    ]


def test_a_better_variant_is_found_and_counts_among_all():
    gain = pd.Series([0.002, 0.003, 0.0025])
    ours = [0.985, 0.986, 0.99]
    better = [a + b for a, b in zip(ours, gain, strict=True)]
    frames = frames_of(forecast=ours, tempered=better)
    assert verdicts(ablation.find(("tempered",), frames), "tempered ends above") == [HOLDS]
    noise = {name.replace("-", "_"): [0.98, 0.991, 0.985] for name in ("bias-0.2", "cap-3", "no-bias")}
    names = ("tempered", "bias-0.2", "cap-3", "no-bias")
    assert verdicts(ablation.find(names, frames_of(forecast=ours, tempered=better, **noise)), "tempered ends") == [OPEN]


def outcome(rule: Method, rounds: int = 6) -> list[torch.Tensor]:
    """The weights after some rounds of the quick form."""
    run = compare(runs.SMALL_THREE.federation_of, [rule], rounds, 0.2, [0], evaluate_every=rounds, device="cpu").runs[0]
    return list(run.weights)


@pytest.mark.parametrize(
    ("aggregation", "like"),
    [
        (ChangingBias(lambda ratio, seen, t: 0.3), Forecast(0.3)),
        (ChangingBias(lambda ratio, seen, t: 0.0), FedVARP()),
        (Impatient(0.0), Forecast(0.3)),
        (OwnRatio(Forecast(0.3), prior=1e9), Forecast(0.3)),
    ],
)
def test_variants_are_forecast_where_nothing_is_different(aggregation, like):
    ours, theirs = (outcome(Method("m", ExpectedResidualVariance(), rule)) for rule in (aggregation, like))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def all_variants() -> mmfl.Comparison:
    """Forecast and every variant, after a few rounds at a rate of 0.23."""
    methods = ["forecast", *map(method, VARIANTS)]
    return compare(runs.SMALL_THREE.federation_of, methods, 7, 0.23, [0], evaluate_every=7, device="cpu")


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_trains_the_drawn_clients_alone_and_differs_from_forecast(name, all_variants):
    run = all_variants[name]
    assert run.costs["forward_passes"].sum() == 0
    assert (run.costs["trainings"] <= run.costs["processors"]).all()
    assert any(not torch.equal(a, b) for a, b in zip(run.weights, all_variants["forecast"].weights, strict=True))


@pytest.mark.parametrize("name", ["forecast", *VARIANTS])
def test_forecast_and_every_variant_draw_the_budget_rounded_up_or_down(name, all_variants):
    """As the systematic draw does: a variant drawn in another way would differ in two things."""
    budget = 0.23 * all_variants[name].federation.capacity.sum()
    assert set(all_variants[name].costs["processors"]) <= {math.floor(budget), math.ceil(budget)}


def observed(ages: dict[int, int], **sums: np.ndarray) -> ExpectedResiduals:
    """What is known with clients last seen in these rounds, their updates of length 2."""
    made = ExpectedResiduals.start(5)
    for client, round in ages.items():
        made.last[client], made.norm[client] = round, 2.0
    return dataclasses.replace(made, **sums)


def everywhere(value: float) -> np.ndarray:
    return np.full_like(ExpectedResiduals.start(1).squares, value)


SEEN = observed({0: 3, 3: 8}, squares=everywhere(1.0), products=everywhere(0.6), stale_squares=everywhere(1.0),
                norms=3.0, received=1.0)  # fmt: skip


def test_the_plain_residual_is_that_of_the_whole_last_update():
    view = dataclasses.replace(VIEW, round=10)
    whole = PlainResiduals().expected_residuals(SEEN, view, 0, None)
    best = Forecast().expected_residuals(SEEN, view, 0, None)
    assert whole == pytest.approx([2 * 0.8**0.5, 3, 3, 2 * 0.8**0.5, 3])  # 1 - 2 * 0.6 + 1
    assert best == pytest.approx([2 * 0.8, 3, 3, 2 * 0.8, 3])  # 1 - 0.6^2
    assert PlainResiduals().expected_residuals(observed({0: 3}), view, 0, None)[0] == 2.0


def test_forecasts_shrink_by_the_curve_and_clients_never_seen_have_none():
    assert betas(SEEN, 10) == pytest.approx([0.6, 0, 0, 0.6, 0])
    assert betas(observed({0: 3, 3: 8}), 10) == pytest.approx([1, 0, 0, 1, 0])


def test_a_residual_in_units_of_the_step_does_not_depend_on_the_units_of_weights():
    rule, found = StepUnits(), []
    for scale in (1.0, 100.0):
        memory = rule.start(5, torch.zeros(4))
        rows = scale * torch.arange(8.0).reshape(2, 4)
        memory.stored.put(np.array([0, 3]), rows)
        memory.weight[[0, 3]] = SIZES[[0, 3], 0]
        memory.sum += (torch.tensor(SIZES[[0, 3], 0], dtype=torch.float64)[:, None] * rows.double()).sum(0)
        expected = dataclasses.replace(SEEN, norm=SEEN.norm * scale, norms=SEEN.norms * scale)
        found.append(rule.expected_residuals(expected, dataclasses.replace(VIEW, round=10), 0, memory))
    np.testing.assert_allclose(found[0], found[1])
    mean = (10 * torch.arange(4.0) + 7 * torch.arange(4.0, 8.0)) / 17
    assert found[0][0] == pytest.approx(2 * 0.8 / float(mean.norm()))


def test_those_who_wait_are_expected_to_have_changed_more():
    view = dataclasses.replace(VIEW, round=10)
    ratio = Impatient(1.0).expected_residuals(SEEN, view, 0, None) / SEEN.expected(10)
    assert ratio == pytest.approx([1.7, 2.0, 2.0, 1.2, 2.0])


def test_sampling_by_the_last_loss_remembers_it_and_takes_the_largest_for_those_never_seen():
    rule = LastLoss()
    state = rule.observe(np.array([[2.0, np.nan]] + [[np.nan, np.nan]] * 4), VIEW, rule.start(5, 2))
    state = rule.observe(np.full((5, 2), np.nan), VIEW, state)
    importance = rule.importance(VIEW, state)
    d = VIEW.share / VIEW.capacity[:, None]
    np.testing.assert_allclose(importance, d * [[2, 1], [2, 0], [0, 1], [2, 1], [2, 1]])
    assert isinstance(state, LastLosses)


def test_capped_importances_are_at_most_so_many_times_their_mean():
    view = VIEW.with_signals(expected_residuals=np.array([[1.0, 1], [1, 0], [0, 1], [1, 1], [1, 90]]))
    plain, capped = ExpectedResidualVariance().importance(view), Capped(2.0).importance(view)
    most = 2 * plain.sum() / 8
    assert plain.max() > most
    np.testing.assert_allclose(capped, np.minimum(plain, most))


@pytest.mark.parametrize("rule", [AgedForecast(0.0), DirectedForecast(0.0)])
def test_shrunken_forecasts_are_exact_where_everyone_is_drawn(rule):
    """With everyone drawn for sure, corrections have the weight d, and the step is the full one for every forecast."""
    from mmfl.allocation import Full

    ours, full = outcome(Method("m", Full(), rule), 4), outcome(Method("m", Full(), FedVARP()), 4)
    for a, b in zip(ours, full, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


# --- small networks ---


def test_components_are_the_principal_ones_in_one_scale():
    data, reduced = mmfl.data.digits(), components("digits", 8)
    rows = data.x.flatten(1).numpy()
    expected = PCA(8, random_state=0).fit_transform(rows)
    np.testing.assert_allclose(reduced.x.numpy() * expected.std(0, ddof=1).mean(), expected, rtol=1e-3, atol=1e-3)
    assert torch.equal(reduced.y, data.y)
    assert len(reduced.x_test) == len(data.x_test)


def test_small_networks_take_the_federation_of_the_five_tasks():
    small, five = (read(path_of("lvr-5tasks"), settings) for settings in (SETTINGS, []))
    assert small.federation == five.federation
    assert [task.name for task in small.tasks] == ["fashion-a", "fashion-b", "cifar10", "emnist", "femnist"]
    for ours, theirs in zip(small.tasks[:4], five.tasks[:4], strict=True):
        assert (ours.lr, ours.epochs, ours.partition) == (theirs.lr, theirs.epochs, theirs.partition)


# --- the quick forms ---


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Quick pages, after a few rounds."""
    results, found = quick(tmp_path_factory, "forecast-3tasks", "forecast-candidates", trainer=Short("cpu"))
    return results, found


def test_the_quick_comparison_has_every_method_with_both_kinds_of_weights(found):
    results, findings = found
    assert findings["forecast-3tasks"].table["method"].tolist() == list(table.METHODS)
    frames = results.frames(table.parts(runs.THREE, runs.SMALL_THREE, True))
    assert not frames["served"].equals(frames["accuracy"])
    assert set(final(frames["served"]).index.get_level_values("method")) == set(table.METHODS)
    assert verdicts(findings["forecast-3tasks"], "asks nothing") == [HOLDS]


def test_the_quick_ablation_has_every_variant(found):
    shown = found[1]["forecast-candidates"].table["variant"].str.removesuffix(" *")
    assert shown.tolist() == ["forecast", *VARIANTS]
    assert verdicts(found[1]["forecast-candidates"], "no variant asks") == [HOLDS]


class Brief(PaperTrainer):
    """Trains for two rounds with one seed."""

    def compare(self, federation, methods, rounds, rate, seeds, **options):
        return super().compare(federation, methods, 2, rate, [0], **options)


def test_the_five_quick_tasks_train_with_all_methods_and_variants():
    for made in (table.REPRODUCTIONS[1], ablation.REPRODUCTIONS[1]):
        measured = [part.run(Brief("cpu")) for part in made.parts(True)]
        names = made.find(together(*measured)).table.iloc[:, 0].str.removesuffix(" *").tolist()
        assert names == list(table.METHODS) or set(names[1:]) <= set(VARIANTS)


def test_steps_compare_what_there_is():
    assert {name for pair in ablation.STEPS for name in pair} <= {*VARIANTS, "forecast"}
    assert partial(method, "no-bias")().name == "no-bias"


# --- what accuracy costs ---


def rising(**paces: list[int]) -> dict[str, pd.DataFrame]:
    """Accuracy that grows by 0.08 in so many rounds up to 0.8, a pace for each seed, tested every five rounds; a
    training and 3 MB a round, and ten times as much for full participation."""
    lines = [
        {"method": name.replace("_", "-"), "seed": seed, "round": t, "mean": 0.8 * min(1.0, 0.1 * t / pace)}
        for name, each in paces.items()
        for seed, pace in enumerate(each)
        for t in range(5, 151, 5)
    ]
    prices = [
        {"method": name.replace("_", "-"), "seed": seed, "trainings": 10.0 if name == "full" else 1.0,
         "bytes_down": 2e7 if name == "full" else 2e6, "bytes_up": 1e7 if name == "full" else 1e6}
        for name, each in paces.items()
        for seed in range(len(each))
    ]  # fmt: skip
    return {"accuracy": pd.DataFrame(lines), "costs": pd.DataFrame(prices)}


def test_rounds_count_to_the_first_mean_over_three_tests_with_the_target():
    reached = costs.rounds_to(rising(full=[5, 10], forecast=[5, 20])).loc["full"]
    assert reached.loc[0].tolist() == [55, 60, 60]  # 0.9, 1 and 1 have the mean 0.967
    assert costs.rounds_to(rising(full=[5], forecast=[20])).loc["forecast"][0.99].isna().all()


def test_runs_that_never_arrive_are_counted_and_have_no_mean():
    found = costs.find(rising(full=[5] * 3, forecast=[5, 10, 10], mifa=[10, 20, 30], random=[30] * 3))
    lines = found.table.set_index("method")["98% of full participation"]
    assert lines["forecast"] == "90 ± 26"
    assert lines["mifa"] == "not within 150 rounds in 2 of 3 runs, in the others 105 to 105"
    assert lines["random"] == "not within 150 rounds in 3 of 3 runs"
    assert found.table["method"].tolist() == ["full", "forecast", "mifa", "random"]


def test_a_run_that_never_arrives_loses_only_where_all_its_rounds_cost_more():
    seeds = 12
    dear = costs.find(rising(full=[5] * seeds, forecast=[10] * seeds, random=[30] * seeds))
    assert verdicts(dear, "fewer trainings than random") == [HOLDS]
    assert verdicts(dear, "fewer trainings than full") == [HOLDS]
    never = costs.find(rising(full=[5] * seeds, forecast=[30] * seeds, random=[30] * seeds, mifa=[10] * seeds))
    assert verdicts(never, "fewer trainings than random") == [OPEN]
    assert verdicts(never, "fewer trainings than full") == [OPEN]  # 150 rounds cost less than full's 60
    assert verdicts(never, "fewer trainings than mifa") == [FAILS]
    (shown,) = [each.ours for each in never.claims if "trainings than mifa" in each.text]
    assert shown.startswith("fewer in 0 of 12 decided pairs")


# --- other settings ---


def test_settings_are_told_apart_and_the_one_as_it_is_comes_first():
    plain = frames_of(forecast=[0.99, 0.99, 0.991], mifa=[0.97, 0.97, 0.972])
    worse = {kind: frame.assign(setting="hard") for kind, frame in frames_of(forecast=[0.9, 0.9, 0.91]).items()}
    ahead = {kind: frame.assign(setting="odd") for kind, frame in frames_of(random=[0.99, 0.98, 0.99]).items()}
    found = robustness.find(together(plain, worse, ahead))
    assert found.table["setting"].tolist() == ["as it is", "hard", "odd"]
    assert found.table.set_index("setting").loc["hard", "forecast"] == "0.903 ± 0.006"
    assert verdicts(found, "as it is", "at most 2%") == [HOLDS]
    assert verdicts(found, "hard", "at most 2%") == [FAILS]
    assert verdicts(found, "as it is", "ends above mifa") == [HOLDS]
    assert verdicts(found, "odd", "ends above random") == [FAILS]
    assert found.notes[-1] == (
        "More than 2% below full participation: hard, odd. Below the best of the others: odd; not decided: nowhere."
    )


def test_every_setting_has_its_parts_and_a_folder_without_special_characters():
    names = [part.name for part in robustness.parts(False) if part.name.startswith("forecast-robust")]
    assert len(set(names)) == len(names)
    assert {name.split("/")[1] for name in names} == {part.name.split("/")[1] for part in robustness.parts(True)[1:]}
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-/") for name in names)
    assert "forecast-robust/2-percent-a-round/0-4" in names
    assert "forecast-robust/roles-of-shakespeare/4" in names


def test_every_setting_is_made_of_settings_that_the_preset_knows():
    for change in robustness.CHANGES.values():
        config = read(path_of("lvr-3tasks"), change.settings)
        assert len(config.tasks) == (1 if change.replaces else 3)


@pytest.fixture(scope="module")
def robust(tmp_path_factory):
    """The quick pages of costs and of other settings, after a few rounds."""
    return quick(tmp_path_factory, "forecast-cost-3tasks", "forecast-robust", trainer=Short("cpu"))[1]


def test_the_quick_settings_train_with_every_method(robust):
    assert robust["forecast-robust"].table["setting"].tolist() == ["as it is", *robustness.CHANGES]
    assert not robust["forecast-robust"].table.isin(["—", "nan"]).any(axis=None)
    assert robust["forecast-cost-3tasks"].table["method"].tolist() == list(table.METHODS)
