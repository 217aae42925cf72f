"""Group sampling's figures: verdicts on made-up measurements, clusters against the truth, and the quick runs."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from shared import FAILS, HOLDS, OPEN, quick
from shared import verdicts as verdicts_of

from conftest import view_of
from mmfl.allocation import Groups, RotatingSplit
from mmfl.papers.group import REPRODUCTIONS
from mmfl.papers.group.clusters import agreement, claims, distinctness, principal_components
from mmfl.papers.group.runs import FIVE_CLUSTERS, GROUP, ONE_TASK, SETTINGS, clusters_met
from mmfl.record import Drawn, RoundRecord

CATALOGUE = {made.id: made for made in REPRODUCTIONS}
TASKS = ("mnist", "emnist-a")


def accuracies(setting, scores, seeds=3, noise=0.0):
    """Each method at its score on both tasks in rounds 81 to 100, ± noise that differs by seed."""
    found = []
    for m, (method, score) in enumerate(scores.items()):
        for seed in range(seeds):
            value = score + noise * (-1) ** (seed + m)
            rounds = {"setting": setting, "method": method, "seed": seed, "round": range(81, 101)}
            found.append(pd.DataFrame({**rounds, **dict.fromkeys((*TASKS, "mean"), value)}))
    return pd.concat(found, ignore_index=True)


def frames_of(*settings, trainings=None, **options):
    """What `find` is given, of settings as (name, scores), and of one in which everyone trains."""
    settings = [*settings, *([("everyone", scores(0.8, 0.9, 0.7))] if "everyone" not in dict(settings) else [])]
    tasks = {"task": TASKS, "data": TASKS, "model": "SmallCNN", "lr": 0.05, "epochs": 5, "arrival": [1, 30]}
    rounds = {"seed": 0, "forward_passes": 0.0, "met": 5.0}
    return {
        "accuracy": pd.concat([accuracies(name, scores, **options) for name, scores in settings]),
        "tasks": pd.concat([pd.DataFrame({**tasks, "setting": name}) for name, _ in settings]),
        "rounds": pd.DataFrame(
            [
                {
                    "setting": name,
                    "method": method,
                    "seed": 0,
                    "trainings": (trainings or {}).get(method, 5.0),
                    **rounds,
                }
                for name, scores in settings
                for method in scores
            ]
        ),
    }


def verdicts(name, frames, *words):
    return verdicts_of(CATALOGUE[name].find(frames), *words)


def scores(random, rotating, group, method=GROUP):
    return {"multi-fedavg": random, "mfa-rr": rotating, method: group}


def test_a_lead_is_measured_against_the_better_baseline():
    frames = frames_of(("consistent", scores(0.5, 0.6, 0.65)))
    found = CATALOGUE["group-fig2a"].find(frames)
    assert verdicts("group-fig2a", frames, "is ahead") == [HOLDS] * 2
    assert verdicts("group-fig2a", frames, "10 points") == [FAILS]
    assert found.claims[0].ours.startswith("+0.050")
    assert found.claims[0].ours.endswith("over mfa-rr, the least certain of 2")
    assert found.table["behind group"].tolist()[:3] == ["0.150", "0.050", ""]
    large = frames_of(("consistent", scores(0.5, 0.4, 0.65)))
    assert verdicts("group-fig2a", large, "10 points") == [HOLDS]


@pytest.mark.parametrize("options", [{"noise": 0.1}, {"seeds": 1}])
def test_noise_or_a_single_seed_decides_nothing(options):
    frames = frames_of(("consistent", scores(0.5, 0.6, 0.65)), **options)
    assert verdicts("group-fig2a", frames, "ahead") == [OPEN] * 3


def test_training_everyone_is_noted_with_the_sign_of_the_difference():
    frames = frames_of(("consistent", scores(0.5, 0.6, 0.7)), ("everyone", scores(0.8, 0.9, 0.7)))
    assert "minus that of mfa-rr is -0.200" in CATALOGUE["group-fig2a"].find(frames).notes[-1]


def test_unequal_numbers_of_trainings_are_reported():
    same, more = (frames_of(("consistent", scores(0.5, 0.6, 0.65)), trainings={GROUP: n}) for n in (5.05, 6.8))
    assert verdicts("group-fig2a", same, "equally many") == [HOLDS]
    assert verdicts("group-fig2a", more, "equally many") == [FAILS]


def test_inconsistent_clusters_need_four_points_on_every_task_and_less_accuracy_than_consistent_ones():
    hard = {**scores(0.4, 0.5, 0.55, ONE_TASK), FIVE_CLUSTERS: 0.45}
    frames = frames_of(("inconsistent", hard), ("consistent", scores(0.4, 0.5, 0.7)))
    assert verdicts("group-fig2b", frames, "4 points") == [HOLDS] * 2
    assert verdicts("group-fig2b", frames, "less accurate") == [HOLDS] * 2
    assert verdicts("group-fig2b", frames, "held to five", "mfa-rr") == [FAILS]
    assert verdicts("group-fig2b", frames, "held to five", "multi-fedavg") == [HOLDS]
    narrow = frames_of(("inconsistent", {**hard, ONE_TASK: 0.53}), ("consistent", scores(0.4, 0.5, 0.5)))
    assert verdicts("group-fig2b", narrow, "4 points") == [FAILS] * 2
    assert verdicts("group-fig2b", narrow, "less accurate") == [FAILS] * 2


def test_more_clients_must_help_group_sampling_and_not_the_baselines():
    fewer = ("consistent", scores(0.5, 0.6, 0.7))
    as_claimed = frames_of(("dynamic-clients", scores(0.5, 0.55, 0.75)), fewer)
    otherwise = frames_of(("dynamic-clients", scores(0.6, 0.65, 0.66)), fewer)
    for frames, baselines, group in ((as_claimed, *[HOLDS] * 2), (otherwise, *[FAILS] * 2)):
        assert verdicts("group-fig4a", frames, "gains at most a point") == [baselines] * 2
        assert verdicts("group-fig4a", frames, "mmfl-group gains") == [group]


def test_tasks_from_the_start_stay_and_late_ones_end_lower():
    frames = frames_of(("dynamic-tasks", scores(0.5, 0.6, 0.69)), ("consistent", scores(0.5, 0.6, 0.7)))
    assert verdicts("group-fig4b", frames, "mnist ends about") == [HOLDS]
    assert verdicts("group-fig4b", frames, "emnist-a, which came in round 30") == [HOLDS]


def federation_of(*groups):
    """All that measuring clusters asks of a federation."""
    return SimpleNamespace(
        groups=tuple(np.array(each) for each in groups), task_arrivals=np.ones(len(groups), dtype=int)
    )


def test_clusters_are_compared_with_the_truth_of_the_tasks_they_were_formed_by():
    truth, other = np.arange(20) % 5, np.arange(20) // 4
    losses = np.stack([truth, other], axis=1) + 1.0
    both, first = (
        Groups(consistent, largest=5).allocate(view_of(np.full((20, 2), 9), losses=losses), Groups().start(20, 2))[1]
        for consistent in (True, False)
    )
    assert agreement(first, federation_of(truth, other)) == 1
    assert agreement(first, federation_of(other, truth)) < 0.1
    assert agreement(both, federation_of(truth, other)) < 1


def test_who_has_not_arrived_does_not_count():
    truth, sizes = np.arange(20) % 5, np.full((20, 1), 9)
    sizes[15:] = 0
    cycle = Groups(largest=5).allocate(view_of(sizes, losses=truth[:, None] + 1.0), Groups().start(20, 1))[1]
    wrong = np.where(np.arange(20) < 15, truth, 0)
    assert agreement(cycle, federation_of(wrong)) == agreement(cycle, federation_of(truth)) > 0


def test_losses_far_apart_by_cluster_are_distinct_and_random_ones_are_not():
    truth, rng = np.arange(50) % 5, np.random.default_rng(0)
    noise = rng.standard_normal((50, 2))
    clear, unclear = (
        distinctness(scale * truth[:, None] + noise, federation_of(truth, truth)) for scale in (30.0, 0.0)
    )
    assert clear["agreement"] == 1
    assert clear["silhouette"] > 0.8
    assert unclear["agreement"] < 0.2
    assert unclear["silhouette"] < 0.1


def test_tasks_with_other_clusters_do_not_blur_those_of_the_first():
    truth, other = np.arange(50) % 5, np.arange(50) // 10
    losses = np.stack([truth, 1000 * np.random.default_rng(0).standard_normal(50)], axis=1)
    assert distinctness(losses, federation_of(truth, other)) == {"silhouette": 1.0, "agreement": 1.0}


def test_principal_components_keep_distances_within_a_plane():
    plane = np.linalg.qr(np.random.default_rng(0).standard_normal((5, 2)))[0]
    flat = np.random.default_rng(1).standard_normal((30, 2)) * [3.0, 1.0]
    found = principal_components(flat @ plane.T)
    assert found.shape == (30, 2)
    assert np.allclose(np.linalg.norm(found[:1] - found, axis=1), np.linalg.norm(flat[:1] - flat, axis=1))
    assert found[:, 0].std() > found[:, 1].std()


@pytest.mark.parametrize(("later", "noise", "verdict"), [(0.8, 0, HOLDS), (0.4, 0, FAILS), (0.8, 0.3, OPEN)])
def test_clusters_grow_distinct_or_not(later, noise, verdict):
    seen = pd.DataFrame(
        [
            {"setting": "consistent", "method": GROUP, "seed": seed, "round": t}
            | dict.fromkeys(("silhouette", "agreement", "in force"), value + seed / 100 + noise * (seed - 1) * (t > 5))
            for seed in range(3)
            for t, value in ((5, 0.6), (25, later))
        ]
    )
    assert [claim.verdict for claim in claims(seen, "consistent")] == [verdict] * 3


def run_of(federation, tasks, drawn):
    """A run whose rounds drew these clients, a dictionary by task each."""
    records = [
        RoundRecord(t, "full", 0, drawn={task: Drawn(clients, [1] * len(clients)) for task, clients in each.items()})
        for t, each in enumerate(drawn, 1)
    ]
    return SimpleNamespace(federation=federation, tasks=tasks, records=records)


def test_clusters_that_a_task_meets_are_counted_in_stretches_of_five_rounds():
    federation = federation_of(np.arange(10) % 5)
    rounds = [{"a": [0]}, {"a": [5]}, {}, {"a": [1, 2]}, {}, *[{"a": [t]} for t in range(5)], {"a": [0]}]
    assert clusters_met(run_of(federation, ["a"], rounds)) == (3 + 5) / 2
    federation.task_arrivals[0] = 6
    assert clusters_met(run_of(federation, ["a"], rounds)) == 5


def test_a_frame_of_round_robin_meets_as_many_clusters_as_random_groups_with_a_sixth_of_each_drawn():
    """Both are five clients at random out of thirty: 5 (1 - C(24,5) / C(30,5)) = 3.51 clusters on average."""
    rule, rng, truth = RotatingSplit(), np.random.default_rng(0), np.arange(30) % 5
    state, met = rule.start(30, 5), []
    for t in range(1, 3001):
        allocation, state = rule.allocate(view_of(np.full((30, 5), 9), budget=5, round=t), state)
        met.append(truth[allocation.client[allocation.task == 0]][0])
    rotating = np.mean([len(set(met[t : t + 5])) for t in range(0, 3000, 5)])
    groups = [rng.permutation(30).reshape(5, 6) for _ in range(2000)]
    dealt = np.mean([len(set(truth[rng.permuted(parts, axis=1)[:, 0]])) for parts in groups])
    assert rotating == pytest.approx(3.509, abs=0.1)
    assert dealt == pytest.approx(3.509, abs=0.1)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """Quick forms of each kind: the results, and findings by name."""
    return quick(tmp_path_factory, "group-fig2a", "group-fig3", "group-fig4b")


@pytest.mark.slow
def test_group_sampling_meets_every_cluster_and_leads_on_the_digits(reproduced):
    table = reproduced[1]["group-fig2a"].table.set_index(["setting", "method"])
    met = table["clusters met"].astype(float)
    assert met["consistent", GROUP] > 4.8
    assert met["consistent", "mfa-rr"] < 4.2
    assert met["consistent", "multi-fedavg"] < 4.2
    behind = pd.to_numeric(table["behind group"])
    assert (behind["consistent"].dropna() > 0.05).all()
    assert (behind["everyone"].dropna() < -0.05).all()


@pytest.mark.slow
def test_losses_of_the_digits_show_the_true_clusters(reproduced):
    table = reproduced[1]["group-fig3"].table
    seen = table[(table["setting"] == "consistent") & (table["method"] == GROUP)]
    assert seen["after round"].tolist() == [5, 25]
    assert all(float(value.split()[0]) > 0.9 for value in seen["Rand index of K-means on these losses"])


@pytest.mark.slow
def test_late_tasks_are_tested_from_their_arrival_on(reproduced):
    frames = reproduced[0].frames(CATALOGUE["group-fig4b"].parts(True))
    late = frames["accuracy"][frames["accuracy"]["setting"] == "dynamic-tasks"].set_index("round")
    assert late.loc[late.index < 18, "digits-e"].isna().all()
    assert late.loc[late.index >= 18, "digits-e"].notna().all()


def test_clients_arrive_during_the_quick_form_too():
    federation = SETTINGS["dynamic-clients"].federations(True)(0)
    assert (federation.arrivals == 1).sum() == 24
    assert federation.clients == 60
    assert (federation.arrivals <= 25).sum() > 50
