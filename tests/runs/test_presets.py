"""The papers' federations by name, and the facts that the papers state about them."""

import gzip
import json

import numpy as np
import pytest

import mmfl
from conftest import refused
from mmfl.methods import METHODS
from mmfl.runs import config, presets

PAPERS = sorted(set(presets.NAMES) - {"demo"})


@pytest.fixture(scope="module", autouse=True)
def small_data(tmp_path_factory):
    """Files in the sources' formats, with random content: partitions look at labels and owners alone."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name, shape, classes, each in (
        ("fashion_mnist", (28, 28), 10, 600),
        ("mnist", (28, 28), 10, 300),
        ("cifar10", (32, 32, 3), 10, 600),
        ("femnist47", (28, 28), 47, 90),
    ):
        rows = classes * each
        arrays = {
            f"{kind}_{part}": rng.integers(0, 256, (n, *shape)).astype(np.uint8)
            if kind == "x"
            else (np.arange(n) % classes).astype(np.uint8)
            for part, n in (("train", rows), ("test", 2 * classes))
            for kind in "xy"
        }
        np.savez(folder / f"{name}.npz", **arrays)
    with gzip.open(folder / "shakespeare.jsonl.gz", "wt") as file:
        for role in range(150):
            text = "to be or not to be, " * int(rng.integers(12, 400))
            file.write(json.dumps({"user": f"u{role}", "play": "p", "role": f"r{role}", "text": text}) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMFL_DATA", str(folder))
        patch.setenv("MMFL_OFFLINE", "1")
        yield


federation = mmfl.preset


@pytest.mark.parametrize("name", PAPERS)
def test_every_preset_builds_its_federation_and_names_known_methods(name):
    known = config.read(name)
    assert known.seeds in (5, 20)
    assert all(isinstance(method, dict) or method in METHODS for method in known.methods)
    made = federation(name)
    assert made.clients == known.federation.clients
    assert len(made.tasks) == len(known.tasks)
    assert presets.summary(name).split()[0] in {"Zhang", "Gong", "Bhuyan", "Bhuyan,", "Askin"}


@pytest.mark.parametrize("name", ["lvr-3tasks", "lvr-5tasks"])
def test_the_setting_of_lvr_has_the_published_shares(name):
    shares = []
    for seed in range(4):
        made = federation(name, seed)
        images = [s for s, task in enumerate(made.tasks) if task.name != "shakespeare"]
        lacking = (made.sizes == 0).sum(1)
        assert sorted(np.unique(lacking, return_counts=True)[1]) == [12, 108]
        tasks_of = (made.sizes > 0).sum(1)
        everything, half, one = (made.capacity == tasks_of), (made.capacity == -(-tasks_of // 2)), made.capacity == 1
        assert (everything | half | one).all()
        assert abs(everything.sum() - 30) <= 1
        assert 30 <= one.sum() <= 42  # half of two tasks is one as well
        view = made.view(1, rate=0.1, seed=0)
        assert view.budget == pytest.approx(0.1 * made.capacity.sum())
        for s in images:
            sizes, labels = made.sizes[:, s], made.tasks[s].data.y.numpy()
            assert ((sizes >= 90) | (sizes <= 15)).all()
            shares.append(sizes[sizes >= 90].sum() / sizes.sum())
            classes = len(np.unique(labels))
            held = [len(np.unique(labels[made.shards[s].of(i)])) for i in range(120) if sizes[i]]
            assert max(held) == round(0.3 * classes)
    assert np.mean(shares) == pytest.approx(1440 / (1440 + 1296), abs=0.02)


def test_tasks_share_one_copy_of_their_images_but_those_of_lvr_no_partition():
    faces, made = federation("mfa-faces"), federation("lvr-3tasks")
    assert [len(each.tasks) for each in (faces, made)] == [9, 3]
    assert [len({id(task.data.x) for task in each.tasks}) for each in (faces, made)] == [1, 1]
    assert set(made.shards[0].of(0)) != set(made.shards[1].of(0))
    rich = [set(np.flatnonzero(made.sizes[:, s] >= 90)) for s in range(3)]
    assert rich[0] != rich[1] != rich[2]


def test_shakespeare_has_its_roles_in_natural_proportions_up_to_a_cap():
    made = federation("lvr-5tasks")
    sizes = made.sizes[:, made.task_names.index("shakespeare")]
    assert sizes.max() <= 256
    assert len(np.unique(sizes)) > 20


@pytest.mark.parametrize(("name", "consistent"), [("group-consistent", True), ("group-inconsistent", False)])
def test_the_clusters_of_group_sampling(name, consistent):
    made = federation(name)
    assert made.sizes.min() >= 30
    assert made.sizes.max() <= 40
    for s, task in enumerate(made.tasks):
        group, labels = made.groups[s], task.data.y.numpy()
        assert np.bincount(group).tolist() == [6] * 5
        held = [set(labels[made.shards[s].of(i)]) for i in range(30)]
        sets = [set.union(*(held[i] for i in np.flatnonzero(group == g))) for g in range(5)]
        classes = len(np.unique(labels))
        assert sum(map(len, sets)) == len(set.union(*sets)) == classes
    same = all((made.groups[0] == group).all() for group in made.groups[1:])
    assert same == consistent
    assert config.read(name).rate * 30 == pytest.approx(5)


def test_clients_and_tasks_that_arrive():
    clients = federation("group-dynamic-clients")
    assert (clients.arrivals == 1).sum() == 24
    assert (np.diff(clients.arrivals) >= 0).all()
    tasks = federation("group-dynamic-tasks")
    assert tasks.task_arrivals.tolist() == [1, 1, 1, 30, 60]


def test_half_of_the_clients_of_figure_5_take_part_four_times_as_often():
    made = config.read("fig5-staleness").experiment()
    allocation, _ = made.methods[0].allocation.allocate(made.federation_of(0).view(1, rate=0.1, seed=0), None)
    assert np.unique(allocation.probabilities, return_counts=True)[0].tolist() == [0.04, 0.16]
    assert (allocation.probabilities[:20] == 0.04).all()


@pytest.mark.parametrize("find", [config.read, mmfl.preset])
def test_an_unknown_preset_is_refused_with_the_nearest(find):
    with pytest.raises(mmfl.UserError, match="did you mean 'lvr-3tasks'"):
        find("lvr-3task")


def test_settings_change_a_preset_as_on_the_command_line():
    assert set(mmfl.preset("quadratic", settings=["federation.capacity=2"]).capacity) == {2}
    with refused("--set federation.capacty: expected key=value"):
        mmfl.preset("quadratic", settings=["federation.capacty"])
    with refused("unknown key 'federation.capacty'", "did you mean 'capacity'?"):
        mmfl.preset("quadratic", settings=["federation.capacty=2"])
