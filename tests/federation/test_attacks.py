"""Attacks in simulations: who attacks, what attackers send, and that nothing else changes."""

import numpy as np
import pytest
import torch

import mmfl
from conftest import refusals, refused, toy_task
from mmfl.allocation import Full
from mmfl.allocation.variance import LeastVariance
from mmfl.federation.attacks import (
    ATTACKS,
    Attack,
    AttackerView,
    GaussianNoise,
    LabelFlip,
    LittleIsEnough,
    Scaling,
    SignFlip,
)
from mmfl.methods import METHODS
from mmfl.runs.config import read
from mmfl.training.attacked import attacked
from mmfl.updates import Trained
from mmfl.updates.world import World

CLIENTS, FALSE = 10, [1, 4, 7]
HONEST = [n for n in range(CLIENTS) if n not in FALSE]
EVERY = pytest.mark.parametrize("make", ATTACKS.values(), ids=ATTACKS)


def federation(attack: Attack | None = None, seed: int = 0, **options) -> mmfl.Federation:
    tasks = [toy_task("one", lr=0.5, epochs=2), toy_task("two", classes=3)]
    return mmfl.Federation(tasks, CLIENTS, capacity=2, attack=attack, seed=seed, **options)


class Keeper(mmfl.AggregationRule):
    """The mean of the updates, which it keeps, by task."""

    def __init__(self):
        self.received = []

    def aggregate(self, weights, updates, view, state):
        self.received.append(updates.flat.clone())
        return weights - updates.flat.mean(0), state


def received(attack: Attack | None, task: int = 0, **options) -> torch.Tensor:
    """What all clients send in the first round."""
    rule = Keeper()
    mmfl.train(federation(attack), mmfl.Method("keeper", Full(), rule), rounds=1, device="cpu", **options)
    return rule.received[task]


def assert_same(one: mmfl.Run, other: mmfl.Run) -> None:
    assert all(map(torch.equal, one.weights, other.weights))
    assert [record.drawn for record in one.records] == [record.drawn for record in other.records]


# Who attacks.


def test_a_share_of_the_clients_attacks_and_the_seed_says_which():
    marks = {(share, seed): SignFlip(share).attackers(50, seed) for share in (0.0, 0.2, 0.5, 1.0) for seed in (0, 1)}
    assert [int(each.sum()) for each in marks.values()] == [0, 0, 10, 10, 25, 25, 50, 50]
    assert (marks[0.2, 0] <= marks[0.5, 0]).all()
    assert (marks[0.5, 0] != marks[0.5, 1]).any()
    np.testing.assert_array_equal(marks[0.5, 0], Scaling(0.5).attackers(50, 0))


def test_attackers_may_be_named_and_listeners_are_told_who_they_are():
    class Listener(mmfl.Listener):
        def begin(self, info):
            self.info = info

    assert np.flatnonzero(federation(SignFlip(FALSE)).attackers).tolist() == FALSE
    assert federation(SignFlip(FALSE)).describe()["attackers"] == "3 of 10 (SignFlip)"
    assert "attackers" not in federation().describe()
    told = {}
    for name, attack in (("attack", SignFlip(0.3)), ("none", None)):
        listener = Listener()
        runs = mmfl.compare(
            lambda seed, attack=attack: federation(attack, seed), ["random"], 1, 0.5, seeds=2, listeners=[listener]
        )
        told[name] = listener.info.attackers
        assert not attack or told[name] == {run.seed: np.flatnonzero(run.federation.attackers).tolist() for run in runs}
    assert [len(each) for each in told["attack"].values()] == [3, 3]
    assert told["none"] == {}


# What they send.


@EVERY
def test_honest_clients_send_the_same_bits_as_without_an_attack(make):
    without, with_attack = received(None), received(make(FALSE))
    assert torch.equal(without[HONEST], with_attack[HONEST])
    assert not torch.isclose(without[FALSE], with_attack[FALSE]).all(1).any()


def test_attackers_send_what_the_formulas_say():
    honest = received(None)
    assert torch.equal(received(SignFlip(FALSE, factor=3.0))[FALSE], -3 * honest[FALSE])
    assert torch.equal(received(Scaling(FALSE, factor=7.0))[FALSE], 7 * honest[FALSE])
    others = honest[HONEST].double().numpy()
    expected = others.mean(0) - 0.5 * others.std(0)
    for row in received(LittleIsEnough(FALSE, z=0.5))[FALSE].numpy():
        np.testing.assert_allclose(row, expected, atol=1e-6)


def test_noise_is_normal_and_as_long_as_said_and_differs_by_client_round_and_task():
    updates = torch.ones(3, 4000) * torch.tensor([[1.0], [2.0], [3.0]])
    attack = GaussianNoise(FALSE, factor=5.0)
    sent = [
        attack.poison(AttackerView(seed, round, task, np.array([1, 4, 7]), updates)) - updates
        for seed, round, task in ((0, 1, 0), (0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1))
    ]
    for row, size in zip(sent[0], (1, 2, 3), strict=True):
        assert float(row.std()) == pytest.approx(5 * size, rel=0.05)
        assert abs(float(row.mean())) < 5 * size * 5 / np.sqrt(4000)
    assert torch.equal(sent[0], sent[1])
    rows = torch.cat([sent[0], *sent[2:]])
    assert np.abs(np.corrcoef(rows.numpy()) - np.eye(len(rows))).max() < 0.1


def test_attackers_train_on_flipped_labels_and_the_rest_of_the_data_is_the_same():
    honest = federation()
    false = mmfl.Federation(honest.tasks, CLIENTS, capacity=2, attack=LabelFlip(FALSE))
    for s, classes in enumerate((4, 3)):
        labels, flipped = honest.tasks[s].data.y, false.tasks[s].data.y
        for client in range(CLIENTS):
            rows = false.shards[s].of(client)
            wanted = classes - 1 - labels[rows] if client in FALSE else labels[rows]
            assert torch.equal(flipped[rows], wanted)
        assert false.tasks[s].data.x is honest.tasks[s].data.x
        assert false.tasks[s].data.y_test is honest.tasks[s].data.y_test


def test_where_all_who_train_attack_together_they_send_what_they_have():
    everyone = list(range(CLIENTS))
    assert torch.equal(received(LittleIsEnough(everyone)), received(None))


def test_an_allocation_by_norms_sees_those_that_attackers_send():
    seen = []

    class Norms(LeastVariance):
        def allocate(self, view, state):
            seen.append(view.signals["norms"][:, 0])
            return super().allocate(view, state)

    for attack in (None, Scaling(FALSE, factor=4.0)):
        method = mmfl.Method("norms", Norms("norms"), mmfl.aggregation.Unbiased())
        mmfl.train(federation(attack), method, rounds=1, rate=0.5, device="cpu")
    np.testing.assert_allclose(seen[1] / seen[0], np.where(np.isin(range(CLIENTS), FALSE), 4, 1), rtol=1e-5)


# With every engine and method.


def test_an_attack_of_nobody_is_no_attack_to_the_bit():
    plain = mmfl.train(federation(), "forecast", rounds=4, rate=0.5)
    for make in ATTACKS.values():
        assert_same(plain, mmfl.train(federation(make(0.0)), "forecast", rounds=4, rate=0.5))


@EVERY
def test_cohorts_and_one_after_another_give_the_same_numbers(make):
    one, other = (received(make(FALSE), engine=engine) for engine in ("vectorised", "sequential"))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@EVERY
def test_in_lockstep_a_method_gives_what_it_gives_alone(make):
    methods = ["random", {"name": "robust", "allocation": "random-clients", "aggregation": "multi-krum"}]
    together = mmfl.compare(federation(make(FALSE)), methods, 3, 0.5, seeds=2, engine="vectorised")
    for method in methods:
        name = method if isinstance(method, str) else method["name"]
        alone = mmfl.train(federation(make(FALSE)), method, 3, 0.5, 1, engine="vectorised")
        (run,) = (run for run in together.of(name) if run.seed == 1)
        for mine, theirs in zip(alone.weights, run.weights, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_every_method_works_under_an_attack_and_is_harmed_by_it():
    for attack in (SignFlip(FALSE, 2.0), LittleIsEnough(FALSE, 3.0)):
        attacked_runs = mmfl.compare(federation(attack), list(METHODS), 4, 0.8, engine="vectorised")
        honest_runs = mmfl.compare(federation(), list(METHODS), 4, 0.8, engine="vectorised")
        for run, honest in zip(attacked_runs, honest_runs, strict=True):
            assert all(torch.isfinite(weights).all() for weights in run.weights), run.method
            assert not all(map(torch.equal, run.weights, honest.weights)), run.method


def test_a_resumed_run_has_the_same_bits(tmp_path):
    class Crash(mmfl.Listener):
        def round(self, records):
            if records[0].round == 3:
                raise MemoryError

    attack = federation(GaussianNoise(FALSE, factor=0.5))
    options = {"directory": tmp_path / "run", "checkpoint_every": 2}
    with pytest.raises(MemoryError):
        mmfl.train(attack, "fedvarp", 6, 0.5, listeners=[Crash()], **options)
    assert_same(mmfl.train(attack, "fedvarp", 6, 0.5), mmfl.train(attack, "fedvarp", 6, 0.5, resume=True, **options))


class Other(World):
    """One of two processes; the other one has the sums that are given, in this order."""

    rank, size = 0, 2

    def __init__(self, *sums: torch.Tensor):
        self.theirs = list(sums)

    def sum(self, tensor):
        return tensor + self.theirs.pop(0)


def test_the_honest_updates_of_other_processes_count_too():
    """Clients 0, 2, ... are of this process."""
    flat = torch.from_numpy(np.random.default_rng(0).normal(size=(CLIENTS, 5)))
    honest = flat[HONEST]
    mean, deviation = honest.mean(0), honest.std(0, correction=0)
    theirs = flat[[n for n in HONEST if n % 2]]
    world = Other(theirs.sum(0) / len(HONEST), (theirs - mean).square().sum(0) / len(HONEST))
    here, every = np.arange(0, CLIENTS, 2), np.arange(CLIENTS)
    trained = Trained(every, flat[here], np.ones(CLIENTS), np.ones(CLIENTS, dtype=int), here, world)
    sent = attacked(trained, federation(LittleIsEnough(FALSE)), 0, 1, 0).flat
    assert torch.equal(sent[[0, 1, 3, 4]], flat[[0, 2, 6, 8]])
    torch.testing.assert_close(sent[2], mean - 1.5 * deviation)
    assert torch.equal(trained.flat, flat[here])


# What users write.

TEXT = """
methods = [{ name = "robust", allocation = "random-clients", aggregation = "median" }]
rounds = 1

[federation]
clients = 10
attack = { name = "sign-flip", clients = 0.3, factor = 2.0 }

[[tasks]]
name = "digits"
data = "digits"
model = "logistic"
"""


def test_a_configuration_names_an_attack(tmp_path):
    (tmp_path / "attacked.toml").write_text(TEXT)
    built = read(tmp_path / "attacked.toml").experiment().federation_of(0)
    assert built.attack == SignFlip(0.3, factor=2.0)
    assert built.attackers.sum() == 3


def test_an_attack_of_ones_own_is_a_class_with_a_formula():
    class Zero(Attack):
        def poison(self, view):
            return torch.zeros_like(view.updates)

    assert not received(Zero(FALSE))[FALSE].any()


def test_an_attack_is_told_which_clients_attack_in_which_round_of_which_task():
    class Numbered(Attack):
        def poison(self, view):
            assert view.honest is None
            numbers = torch.from_numpy(view.client) + 100 * view.round + 1000 * view.task
            return numbers[:, None].expand_as(view.updates).to(view.updates)

    for task in (0, 1):
        sent = received(Numbered(FALSE), task)
        assert sent[FALSE].unique(dim=1).flatten().tolist() == [each + 100 + 1000 * task for each in FALSE]


def configured(tmp_path, attack: str):
    (tmp_path / "attacked.toml").write_text(TEXT.replace('{ name = "sign-flip", clients = 0.3, factor = 2.0 }', attack))
    return read(tmp_path / "attacked.toml").experiment().federation_of(0)


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        ('"sing-flip"', ["unknown attack 'sing-flip'", "did you mean 'sign-flip'?"]),
        ('"sign-flip"', ["attack 'sign-flip'", "needs the option 'clients'"]),
        ('{ name = "scaling", clients = 0.1, facto = 2 }', ["unknown option 'facto'", "did you mean 'factor'?"]),
        ('"collections.Counter"', ["attack is Counter()", "expected an attack"]),
    ],
)
def test_mistakes_in_a_configuration_are_named(tmp_path, attack, words):
    with refused(*words):
        configured(tmp_path, attack)


def regression() -> mmfl.Federation:
    """Labels to flip, where there are none."""
    error = mmfl.objectives.squared_error
    data = mmfl.data.from_arrays(np.ones((20, 3)), np.ones((20, 4)), test_share=0.5)
    return mmfl.Federation([toy_task(data=data, loss=error, metric=error)], 4, attack=LabelFlip(0.5))


@refusals(
    (lambda: SignFlip(1.5), "attack SignFlip", "clients is 1.5", "in [0, 1]"),
    (lambda: SignFlip([0, -1]), "clients is [0, -1]"),
    (lambda: SignFlip("half"), "clients is 'half'"),
    (lambda: federation(SignFlip([3, 12])), "attack SignFlip: client 12 of 10", "0 to 9"),
    (lambda: SignFlip(0.1, factor=-1), "factor is -1"),
    (lambda: Scaling(0.1, factor=float("nan")), "factor is nan"),
    (lambda: GaussianNoise(0.1, factor="much"), "factor is 'much'"),
    (lambda: LittleIsEnough(0.1, z=None), "z is None"),
    (lambda: federation("sign-flip"), "attack is 'sign-flip'", "mmfl.attacks.SignFlip"),
    (lambda: federation(SignFlip), "expected an attack"),
    (regression, "task 'toy'", "attack LabelFlip needs the number of a class"),
)
def test_invalid_attacks_are_refused(make, words):
    with refused(*words):
        make()
