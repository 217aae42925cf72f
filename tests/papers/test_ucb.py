"""Figures of Bhuyan & Moharir 2022: the baseline against single runs, claims on made-up accuracies, the quick form."""

import numpy as np
import pandas as pd
import pytest
import torch
from shared import FAILS, HOLDS, OPEN, quick, together, verdicts

import mmfl
from conftest import toy_task, view_of
from mmfl.aggregation import Average
from mmfl.allocation import RandomClients
from mmfl.papers import reproduce
from mmfl.papers.ucb import REPRODUCTIONS
from mmfl.papers.ucb.findings import Question, Runs
from mmfl.papers.ucb.training import (
    FEDAVG,
    FULL,
    MODELS,
    MULTI,
    PARETO,
    QUICK,
    RANKLIST,
    SeparateFedAvg,
    people,
    synthetic,
    with_warm_up,
)

CATALOGUE = {made.id: made for made in REPRODUCTIONS}
LEVELS = {FEDAVG: 0.5, MULTI: 0.5, RANKLIST: 0.7, PARETO: 0.6, with_warm_up(FEDAVG): 0.55, with_warm_up(MULTI): 0.65}


def made_up(levels=LEVELS, data="synthetic-1-1", drawn=2, seeds=4, rounds=100, second=None):
    """Frames in which every policy has its level from round 3 on, and a seed adds the same to all of them."""
    setting = {"data": data, "K": drawn}
    tests = [
        {
            "method": method,
            "seed": seed,
            "round": round,
            "model 1": level + 0.01 * seed,
            "model 2": (second or levels)[method] + 0.01 * seed,
            **setting,
        }
        for method, level in levels.items()
        for seed in range(seeds)
        for round in (1, 2, *range(5, rounds + 1, 5))
    ]
    effort = [
        {"method": method, "seed": seed, "clients": 2.0, "examples": 300.0, "source": "made up", **setting}
        for method in levels
        for seed in range(seeds)
    ]
    return {"accuracy": pd.DataFrame(tests), "effort": pd.DataFrame(effort)}


class TestBaseline:
    def test_trains_the_first_task_as_a_run_of_its_own_does(self):
        tasks = [toy_task("first", batch_size=5), toy_task("second", batch_size=5)]
        apart = mmfl.Method("apart", SeparateFedAvg(), Average())
        alone = mmfl.Method("alone", RandomClients(), Average())
        both = mmfl.train(mmfl.Federation(tasks, clients=10), apart, rounds=6, rate=0.4, seed=3)
        one = mmfl.train(mmfl.Federation(tasks[:1], clients=10), alone, rounds=6, rate=0.2, seed=3)
        assert torch.equal(both.weights[0], one.weights[0])

    def test_draws_half_of_the_clients_for_each_task_whatever_they_do_for_the_other(self):
        draws = [SeparateFedAvg().allocate(view_of(np.ones((10, 2)), budget=6, round=t), None)[0] for t in range(200)]
        counts = np.array([[len(draw.rows(s)) for s in (0, 1)] for draw in draws])
        assert (counts == 3).all()
        shared = [len(set(draw.client[draw.rows(0)]) & set(draw.client[draw.rows(1)])) for draw in draws]
        assert np.mean(shared) == pytest.approx(0.9, abs=0.15)  # 3 x 3 / 10, as for independent draws
        assert draws[0].probabilities == pytest.approx(np.full((10, 2), 0.3))

    def test_draws_nobody_who_lacks_the_task(self):
        view = view_of([[1, 0], [1, 1], [1, 0], [1, 0]], budget=4)
        draw, _ = SeparateFedAvg().allocate(view, None)
        assert draw.client[draw.rows(1)].tolist() == [1]
        assert len(draw.rows(0)) == 2


class TestData:
    def test_synthetic_tasks_differ_in_sizes_from_each_other_and_from_seed_to_seed(self):
        sizes = [synthetic("synthetic", FULL, seed).sizes.T for seed in (0, 1)]
        assert len({tuple(column) for pair in sizes for column in pair}) == 4
        assert max(column.max() for pair in sizes for column in pair) == 900

    def test_faces_are_generated_anew_for_every_seed_and_both_attributes_share_them(self):
        first, second = people(QUICK, 0), people(QUICK, 1)
        assert first.tasks[0].data.x is first.tasks[1].data.x
        assert (first.shards[0].index == first.shards[1].index).all()
        assert not torch.equal(first.tasks[0].data.x, second.tasks[0].data.x)

    def test_celeba_is_used_where_its_folder_is_with_the_same_people_for_both_models(self, tmp_path, monkeypatch):
        write_celeba(tmp_path / "celeba", celebrities=103)
        monkeypatch.setenv("MMFL_DATA", str(tmp_path))
        monkeypatch.setenv("MMFL_CACHE", str(tmp_path / "cache"))
        federation = people(FULL, 0)
        assert [task.data.name for task in federation.tasks] == ["celeba, Smiling", "celeba, Eyeglasses"]
        assert federation.clients == 100
        assert (federation.shards[0].index == federation.shards[1].index).all()
        assert people(QUICK, 0).tasks[0].data.name.startswith("generated")


def write_celeba(folder, celebrities):
    """Five small pictures of each celebrity, in CelebA's layout."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow, which writes the pictures")
    (folder / "img_align_celeba").mkdir(parents=True)
    names = [f"{n:06d}.jpg" for n in range(5 * celebrities)]
    for name in names:
        image.new("RGB", (8, 8)).save(folder / "img_align_celeba" / name)
    attributes = [f"{name} {2 * (n % 2) - 1} {2 * (n % 3 == 0) - 1}" for n, name in enumerate(names)]
    (folder / "list_attr_celeba.txt").write_text("\n".join([str(len(names)), "Smiling Eyeglasses", *attributes]))
    (folder / "identity_CelebA.txt").write_text("\n".join(f"{name} {n // 5}" for n, name in enumerate(names)))


class TestMeasured:
    def test_windows_are_the_first_and_last_tenth_without_the_two_rounds_of_the_warm_up(self):
        frames = made_up({MULTI: 0.0}, seeds=1)
        frames["accuracy"]["model 1"] = frames["accuracy"]["round"].astype(float)
        here = Runs(frames["accuracy"], fair=False).at("synthetic-1-1", 2)
        assert here.early(MULTI, "model 1").tolist() == [7.5]
        assert here.late(MULTI, "model 1").tolist() == [97.5]
        assert here.over(MULTI, "model 1", 1, 2).tolist() == [1.5]
        assert here.noise(MULTI, "model 1").tolist() == [5.0]

    def test_with_the_same_warm_up_only_the_random_policies_change(self):
        here = Runs(made_up(seeds=1)["accuracy"], fair=True).at("synthetic-1-1", 2)
        assert [here.late(policy, "model 1")[0] for policy in (FEDAVG, MULTI, RANKLIST, PARETO)] == [
            LEVELS[method] for method in (with_warm_up(FEDAVG), with_warm_up(MULTI), RANKLIST, PARETO)
        ]


class TestQuestion:
    low = pd.Series([0.2, 0.3, 0.25])
    ahead, behind, unclear = low + 0.1, low - 0.1, low + pd.Series([0.1, -0.1, 0.05])

    @pytest.mark.parametrize(
        ("first", "second", "tolerance", "verdict"),
        [
            (ahead, ahead, None, HOLDS),
            (ahead, unclear, None, OPEN),
            (ahead, behind, None, FAILS),
            (unclear, behind, None, FAILS),
            (low + 0.02, low, 0.03, HOLDS),
            (low + 0.04, low, 0.03, FAILS),
        ],
    )
    def test_holds_only_if_it_does_in_all_respects(self, first, second, tolerance, verdict):
        asked = Question("ahead", "yes", {"model 1": (first, self.low), "model 2": (second, self.low)}, tolerance)
        claim = asked.claim(fair=False)
        assert (claim.verdict, claim.paper) == (verdict, "yes")


class TestFindings:
    def test_figure_1_compares_bandits_with_fedavg_under_both_starts(self):
        findings = CATALOGUE["ucb-fig1"].find(made_up())
        assert verdicts(findings, "Ranklist", "ends above FedAvg") == [HOLDS] * 2
        assert verdicts(findings, "Pareto", "begins above Multi-FedAvg") == [HOLDS, FAILS]
        assert verdicts(findings, "Multi-FedAvg ends level") == [HOLDS, FAILS]
        assert any("+0.200 as published, and by +0.050" in note for note in findings.notes)
        assert len(findings.table) == 6

    @pytest.mark.parametrize(("second", "verdict"), [({**LEVELS, MULTI: 0.9}, HOLDS), (LEVELS, FAILS)])
    def test_figure_2_fails_where_one_model_is_behind(self, second, verdict):
        found = CATALOGUE["ucb-fig2"].find(made_up({**LEVELS, MULTI: 0.9}, drawn=64, second=second))
        assert verdicts(found, "Multi-FedAvg ends above Pareto", "published") == [verdict]

    @pytest.mark.parametrize(("many", "verdict"), [(LEVELS, HOLDS), ({**LEVELS, MULTI: 0.8}, FAILS)])
    def test_figure_6_asks_about_every_number_of_clients(self, many, verdict):
        frames = [made_up(levels, "synthetic-iid", drawn) for levels, drawn in ((LEVELS, 2), (LEVELS, 8), (many, 64))]
        assert verdicts(CATALOGUE["ucb-fig6"].find(together(*frames)), "Ranklist", "published") == [verdict]

    def test_bandits_are_compared_with_each_other_once_since_both_have_the_warm_up_anyway(self):
        findings = CATALOGUE["ucb-fig7"].find(made_up(data="faces"))
        assert verdicts(findings, "ends above Multi-FedAvg") == [HOLDS] * 2
        assert verdicts(findings, "ends above Pareto") == [HOLDS]

    def test_figure_3_looks_at_both_ends_of_the_sweep(self):
        many = {**LEVELS, MULTI: 0.9, with_warm_up(MULTI): 0.95}
        frames = together(made_up(), made_up(many, drawn=64))
        findings = CATALOGUE["ucb-fig3"].find(frames)
        assert verdicts(findings, "Ranklist") == [HOLDS] * 4
        assert verdicts(findings, "Pareto", "K=2", "same warm-up") == [FAILS]
        assert findings.table["K"].tolist() == [2, 2, 64, 64]
        assert any("+0.200 with K=2, -0.200 with K=64" in note for note in findings.notes)

    def test_figures_4_and_5_compare_leads(self):
        alike = {**LEVELS, RANKLIST: 0.55}
        frames = together(made_up(), made_up(alike, data="synthetic-iid"))
        findings = CATALOGUE["ucb-fig4"].find(frames)
        assert verdicts(findings, "Ranklist", "by less") == [HOLDS] * 2
        assert verdicts(findings, "Pareto", "by less", "published") == [OPEN]  # the same lead
        frames = together(
            made_up(alike, data="synthetic-iid"), made_up({**LEVELS, PARETO: 0.5}, data="synthetic-iid", drawn=64)
        )
        findings = CATALOGUE["ucb-fig5"].find(frames)
        assert verdicts(findings, "Ranklist", "by more", "published") == [HOLDS]
        assert verdicts(findings, "Pareto", "by more", "published") == [FAILS]

    def test_figure_8_compares_noise(self):
        frames = made_up({**LEVELS, PARETO: 0.5}, data="faces", drawn=10)
        tests = frames["accuracy"]
        shaky = (tests["method"] == MULTI) & (tests["round"] % 10 == 0)
        tests.loc[shaky, list(MODELS)] += 0.04
        findings = CATALOGUE["ucb-fig8"].find(frames)
        assert verdicts(findings, "Multi-FedAvg changes more", "published") == [HOLDS]
        assert verdicts(findings, "Ranklist-Multi-UCB changes more", "published") == [OPEN]
        assert verdicts(findings, "Pareto-Multi-UCB ends level", "published") == [HOLDS]


@pytest.fixture(scope="module")
def frames(tmp_path_factory):
    """What was measured for the quick form of a figure of each kind."""
    results, _ = quick(tmp_path_factory, "ucb-fig3", "ucb-fig4", "ucb-fig7")
    return results.frames(reproduce.parts_of([CATALOGUE[f"ucb-fig{n}"] for n in (3, 4, 7)], True))


@pytest.mark.slow
class TestQuickForm:
    def test_every_policy_with_a_warm_up_is_at_the_same_point_after_it(self, frames):
        tests = frames["accuracy"]
        warm = tests[(tests["round"] == 1) & ~tests["method"].isin([FEDAVG, MULTI])]
        assert (warm.groupby(["data", "K", "seed"])[list(MODELS)].nunique() == 1).all(axis=None)
        assert warm["method"].nunique() == 4

    def test_bandits_train_on_more_examples_with_as_many_clients_or_fewer(self, frames):
        effort = frames["effort"].groupby(["data", "K", "method"])[["clients", "examples"]].mean()
        for data in ("synthetic-1-1", "synthetic-iid"):
            assert effort.loc[(data, 2, RANKLIST), "examples"] > 1.3 * effort.loc[(data, 2, MULTI), "examples"]
        assert effort.loc[("synthetic-1-1", 64, PARETO), "clients"] < 20
        assert effort.loc[("synthetic-1-1", 64, RANKLIST), "clients"] == 64

    def test_where_clients_are_alike_ranklist_is_ahead_of_random_clients(self, frames):
        here = Runs(frames["accuracy"], fair=False).at("synthetic-iid", 2)
        for model in MODELS:
            assert (here.lead(RANKLIST, MULTI, model) > 0).all()

    def test_many_random_clients_beat_few_where_clients_differ(self, frames):
        sweep = Runs(frames["accuracy"], fair=False).sweep("synthetic-1-1")
        for model in MODELS:
            assert (sweep[64].late(MULTI, model) > sweep[2].late(MULTI, model) + 0.1).all()
