"""Every named method, end to end: on a federation in motion, resumed, in lockstep, and where it must equal another."""

import json
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from torch import Tensor

import mmfl
from mmfl.aggregation import AGGREGATIONS
from mmfl.allocation import ALLOCATIONS
from mmfl.engine import Simulation
from mmfl.local import LOCAL_RULES
from mmfl.methods import METHODS, make_method
from mmfl.record import RoundRecord
from mmfl.registry import read_spec
from mmfl.runs import checkpoint
from mmfl.runs.directory import RunDirectory
from mmfl.training import Replica, TrainingState, rounds
from mmfl.updates.store import ClientVectorStore

LAST = 30
RESUMED = 21  # rounds that are run with a resumption after each; a client leaves in the last but one
RATE = 0.6
SEED = 0
EMPTY = 13  # the round in which nobody is there

# Client 1 has no task b, client 2 alone has task c. Client 4 stays away for a while, 5 arrives, 6 leaves for good.
HAS = np.array([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 0]], dtype=bool)
CAPACITY = np.array([1, 1, 3, 1, 2, 2, 1, 2])
ARRIVALS = np.array([1, 1, 1, 1, 1, 9, 1, 1])
DEPARTURES = np.array([0, 0, 0, 0, 0, 0, 20, 0])
TASK_ARRIVALS = np.array([1, 6, 1])
REACHED = np.random.default_rng(3).random((LAST, 8)) < 0.75
REACHED[EMPTY - 1] = False
REACHED[9:16, 4] = False


def able(round: int) -> np.ndarray:
    """Who can train what in a round of the federation in motion, [clients, tasks], by its description alone."""
    gone = (DEPARTURES > 0) & (round >= DEPARTURES)
    here = REACHED[round - 1] & (round >= ARRIVALS) & ~gone
    return HAS & here[:, None] & (round >= TASK_ARRIVALS)


def blobs(name: str, seed: int = 0, **options) -> mmfl.Task:
    data = mmfl.data.blobs(200, inputs=3, classes=4, seed=seed)
    return mmfl.Task(name, partial(mmfl.models.LogisticRegression, inputs=3, classes=4), data, lr=0.2, **options)


@cache
def moving(lifetime: str = "client") -> mmfl.Federation:
    """Task b has a momentum, which lives with its clients."""
    momentum = {"optimiser": mmfl.optimisers.SGD(momentum=0.3), "optimiser_state": lifetime}
    options = {"a": {}, "b": momentum, "c": {}}
    return mmfl.Federation(
        [blobs(name, seed, batch_size=8, **options[name]) for seed, name in enumerate("abc")],
        8,
        partition=mmfl.partition.iid([12, 30, 9, 17, 8, 21, 25, 14]),
        capacity=CAPACITY.tolist(),
        lacks=~HAS,
        arrivals=ARRIVALS.tolist(),
        departures=DEPARTURES.tolist(),
        task_arrivals={"b": 6},
        availability=mmfl.Trace(REACHED),
    )


def spec(name: str) -> dict:
    """The method as it is, but that each task has its turn within the rounds run here."""
    return {"method": name, "name": name, **({"rounds": 10} if name == "fedavg" else {})}


def start(engine: Simulation) -> list[Replica]:
    """All methods, before their first round."""
    return [Replica.start(moving(), make_method(spec(name)), SEED, RATE, engine) for name in METHODS]


def plain(record: RoundRecord) -> RoundRecord:
    """A record without what may differ from run to run."""
    return replace(record, seconds=0.0)


def stored(state: TrainingState) -> list[ClientVectorStore]:
    """The vectors that a method keeps of its clients, task by task."""

    def inside(part) -> list[ClientVectorStore]:
        if isinstance(part, ClientVectorStore):
            return [part]
        return [found for f in fields(part) for found in inside(getattr(part, f.name))] if is_dataclass(part) else []

    return [found for part in (*state.aggregation, *state.local) for found in inside(part)]


@dataclass
class History:
    """What a run recorded, and after every round (before the first too) its weights and what it keeps of clients."""

    records: list[RoundRecord]
    weights: list[list[Tensor]]
    kept: list[list[tuple[np.ndarray, Tensor]]]

    def note(self, state: TrainingState) -> None:
        everyone = np.arange(len(HAS))
        self.weights.append([w.clone() for w in state.weights])
        self.kept.append([(s.has(everyone), s.rows(everyone)) for s in stored(state)])

    def drawn(self, round: int) -> np.ndarray:
        """How many processors of each client trained each task, [clients, tasks]."""
        count = np.zeros(HAS.shape, dtype=int)
        for task, (clients, times) in self.records[round - 1].drawn.items():
            count[clients, "abc".index(task)] = times
        return count


@cache
def histories() -> dict[str, History]:
    """The uninterrupted runs, by method, all in lockstep."""
    engine = Simulation("cpu", "vectorised")
    replicas = start(engine)
    found = {r.method.name: History([], [], []) for r in replicas}
    for replica, history in zip(replicas, found.values(), strict=True):
        history.note(replica.state)
    for records in rounds(replicas, engine, LAST):
        for replica, history, record in zip(replicas, found.values(), records, strict=True):
            history.records.append(record)
            history.note(replica.state)
    return found


def history(name: str) -> History:
    return histories()[name]


@cache
def resumed() -> dict[str, tuple[list[dict], list[list[Tensor]]]]:
    """The same with all states written to disk, and read into new replicas, between any two rounds."""
    engine = Simulation("cpu", "vectorised")
    replicas = start(engine)
    found = {r.method.name: ([], []) for r in replicas}
    with TemporaryDirectory() as folder:
        for t in range(1, RESUMED + 1):
            for (records, weights), record, replica in zip(
                found.values(), next(rounds(replicas, engine, t)), replicas, strict=True
            ):
                records.append(record)
                weights.append([w.clone() for w in replica.state.weights])
            checkpoint.write(Path(folder), t, "mark", [replica.state for replica in replicas])
            replicas = start(engine)
            read = checkpoint.read(Path(folder), "mark", [replica.state for replica in replicas])
            assert read[0] == t
            for replica, state in zip(replicas, read[1], strict=True):
                replica.state = state
    return found


WARMED_UP = ("ranklist-multi-ucb", "pareto-multi-ucb")
every_method = pytest.mark.parametrize("name", METHODS)


def test_the_federation_in_motion_is_what_it_says():
    tables = np.stack([able(t) for t in range(1, LAST + 1)])
    for t in range(1, LAST + 1):
        np.testing.assert_array_equal(moving().view(t, rate=RATE, seed=0).able, tables[t - 1])
    assert [t + 1 for t in range(LAST) if not tables[t].any()] == [EMPTY]
    alone = tables[:, :, 2].any(1)
    assert 0 < alone.sum() < LAST - 1  # task c waits for its only client more than once
    assert len(set(CAPACITY)) == 3


@every_method
def test_who_is_drawn_is_there_has_the_task_and_the_processors(name):
    for t in range(1, LAST + 1):
        drawn = history(name).drawn(t)
        assert not drawn[~able(t)].any()
        if name == "full" or (t == 1 and name in WARMED_UP):
            np.testing.assert_array_equal(drawn, able(t))
        else:
            assert (drawn.sum(1) <= np.minimum(CAPACITY, able(t).sum(1))).all()


@every_method
def test_weights_are_finite_and_move_only_where_somebody_can_train(name):
    weights = history(name).weights
    for t in range(1, LAST + 1):
        for s in range(3):
            assert torch.isfinite(weights[t][s]).all()
            if not able(t)[:, s].any():
                assert torch.equal(weights[t][s], weights[t - 1][s])
            elif history(name).drawn(t)[:, s].any():
                assert not torch.equal(weights[t][s], weights[t - 1][s])


@every_method
def test_every_task_that_is_trained_is_learned(name):
    records = history(name).records
    for s, task in enumerate("abc"):
        losses = [record.tasks[task].loss for record in records if task in record.tasks]
        trained = [history(name).drawn(t)[:, s].any() for t in range(1, LAST + 1)]
        assert any(trained)
        if task != "c":  # whose only client is drawn seldom, for steps that are large where they are unbiased
            assert np.mean(losses[-5:]) < 0.8 * losses[0]


@every_method
def test_every_round_is_recorded_in_full(name):
    seen, sizes = np.zeros(len(HAS), dtype=bool), {task: [] for task in "abc"}
    for t, record in enumerate(history(name).records, 1):
        json.dumps(record.to_json(), allow_nan=False)
        drawn = history(name).drawn(t)
        seen |= drawn.any(1)
        assert (record.round, record.method, record.seed) == (t, name, 0)
        assert list(record.tasks) == [task for s, task in enumerate("abc") if TASK_ARRIVALS[s] <= t]
        assert record.clients_seen == seen.sum()
        assert record.cost.processors == drawn.sum()
        scores = [task.metric for task in record.tasks.values()]
        assert record.mean == pytest.approx(np.mean(scores))
        assert record.worst == min(scores)
        for task, row in record.tasks.items():
            assert row.active == (drawn[:, "abc".index(task)] > 0).sum()
            assert row.rejected == 0
            assert (row.training_loss is not None) == (row.step_size > 0) == (row.active > 0)
            assert row.loss > 0
            sizes[task].append(row.step_size)
            expected = np.var(sizes[task], ddof=1) if len(sizes[task]) > 1 else 0.0
            assert row.step_size_variance == pytest.approx(expected, abs=1e-9)


@every_method
def test_what_is_kept_of_a_client_changes_when_it_trains_and_never_else(name):
    kept = history(name).kept
    assert bool(kept[0]) == (METHODS[name].stores != "none")
    for t in range(1, LAST + 1):
        for s, ((had, before), (has, after)) in enumerate(zip(kept[t - 1], kept[t], strict=True)):
            active = history(name).drawn(t)[:, s] > 0
            np.testing.assert_array_equal(has, had | active)
            np.testing.assert_array_equal((after != before).any(1).numpy(), active)


@every_method
def test_a_run_resumed_after_every_single_round_has_the_same_bits_and_records(name):
    whole, (records, weights) = history(name), resumed()[name]
    for t in range(RESUMED):
        assert plain(records[t]) == plain(whole.records[t])
        assert all(map(torch.equal, weights[t], whole.weights[t + 1]))


class Crash(mmfl.Listener):
    def __init__(self, after: int):
        self.after = after

    def round(self, records) -> None:
        if records[0].round == self.after:
            raise MemoryError


def test_all_methods_together_resume_from_their_directory_with_the_same_bits(tmp_path):
    def compare(**options) -> mmfl.Comparison:
        directory = {"directory": tmp_path / "run", "checkpoint_every": 2, "engine": "vectorised"}
        return mmfl.compare(moving(), list(map(spec, METHODS)), 16, RATE, [SEED], **directory, **options)

    with pytest.raises(MemoryError):
        compare(listeners=[Crash(13)])  # after the empty round, in the middle of frames and cycles
    for run in compare(resume=True):
        whole = history(run.method)
        assert all(map(torch.equal, run.weights, whole.weights[16]))
        assert list(map(plain, run.records)) == list(map(plain, whole.records[:16]))
    assert len(RunDirectory.open(tmp_path / "run").records()) == 16 * len(METHODS)


@every_method
def test_a_method_gives_alone_what_it_gives_among_all_others(name):
    crowd = history(name)
    alone = mmfl.train(moving(), spec(name), 12, RATE, SEED, engine="vectorised", evaluate_every=12)
    for mine, theirs in zip(alone.records, crowd.records[:12], strict=True):
        assert mine.drawn == theirs.drawn
        assert mine.cost == theirs.cost
    for mine, theirs in zip(alone.weights, crowd.weights[12], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


# Where one method must be another.


def single(sizes, **options) -> mmfl.Federation:
    """One task, which fills every client's capacity."""
    return mmfl.Federation([blobs("a", **options)], len(sizes), partition=mmfl.partition.labels(0.5, list(sizes)))


EQUAL, UNEQUAL = (16,) * 8, (5, 30, 9, 17, 8, 21, 25, 14)


def weights_of(federation: mmfl.Federation, method, last: int = 6, rate: float = 1.0) -> Tensor:
    run = mmfl.train(federation, method, last, rate, engine="vectorised", evaluate_every=last)
    return torch.cat(run.weights)


def same(first: Tensor, second: Tensor) -> None:
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


# With one task and a budget for everyone every method must train everyone, and then all aggregations are the mean of
# the updates: the stale terms cancel (for any beta), probabilities are 1, and two clusters train the task and its
# copy. Two are different. The Pareto front of a single index is the best client alone, unless it is filled up; and
# SCAFFOLD's corrections change the path of several local steps, though not the mean of single ones of equal clients.
FULL = [name for name in METHODS if name not in ("pareto-multi-ucb", "scaffold")]


@cache
def everyone(sizes: tuple[int, ...]) -> mmfl.Comparison:
    methods = [*FULL, {"method": "pareto-multi-ucb", "fill": True, "name": "pareto-multi-ucb"}]
    return mmfl.compare(single(sizes, epochs=2, batch_size=7), methods, 6, 1.0, engine="vectorised", evaluate_every=6)


@pytest.mark.parametrize("method", [*FULL, "pareto-multi-ucb"])
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_with_one_task_and_a_budget_for_all_a_method_is_full_participation(method, sizes):
    (run,), (full,) = everyone(sizes).of(method), everyone(sizes).of("full")
    same(run.weights[0], full.weights[0])


def test_the_front_of_a_single_index_is_one_client():
    run = mmfl.train(single(UNEQUAL), "pareto-multi-ucb", 6, 1.0, engine="vectorised")
    assert run.costs["trainings"].tolist() == [8, 1, 1, 1, 1, 1]


def test_scaffold_is_full_participation_for_single_steps_only():
    for sizes, epochs, equal in ((EQUAL, 1, True), (UNEQUAL, 1, True), (EQUAL, 2, False)):
        federation = single(sizes, epochs=epochs)
        difference = weights_of(federation, "scaffold") - weights_of(federation, "full")
        assert (float(difference.abs().max()) < 1e-5) == equal


@pytest.mark.parametrize(
    ("method", "other"),
    [
        ({"method": "fedstale", "beta": 0.0}, "random"),
        ({"method": "fedstale", "beta": 1.0}, "fedvarp"),
        ({"method": "mmfl-lvr", "mix": 1.0}, "random"),
        ({"method": "mmfl-gvr", "mix": 1.0}, "random"),
        ({"method": "mmfl-gvr-star", "mix": 1.0}, "fedvarp"),
        ({"method": "mmfl-lvr", "draw": "systematic"}, "lvr-systematic"),
        ({"method": "mmfl-stalevre", "draw": "systematic"}, "stalevre-systematic"),
        (
            {"method": "fedfair", "alpha": 1.0},
            {"name": "even", "allocation": "random-processors", "aggregation": "average"},
        ),
        (
            {"method": "multi-fedavg", "warm_up": True},
            {"name": "warm", "allocation": {"name": "warm-up", "inner": "random-clients"}, "aggregation": "average"},
        ),
        (
            "mmfl-gvr-star",
            {"name": "parts", "allocation": "update-variance", "aggregation": {"name": "fedstale", "beta": 1.0}},
        ),
        (
            "scaffold",
            {"name": "parts", "allocation": "random-processors", "aggregation": "unbiased", "local": "scaffold"},
        ),
        ("fedvarp", {"method": "fedvarp", "keep": {"where": "host"}}),
        ("mmfl-stalevre", {"method": "mmfl-stalevre", "keep": {"where": "file"}}),
    ],
    ids=str,
)
def test_a_method_with_such_settings_is_another(method, other):
    federation = moving("training")  # what clients keep depends on who trains without being drawn
    same(weights_of(federation, method, 18, RATE), weights_of(federation, other, 18, RATE))


@pytest.mark.parametrize(
    ("method", "other"),
    [
        *((split, "multi-fedavg") for split in ("fedavg", "mfa-rand", "mfa-rr", "fedcluster")),
        ("roundrobin-gvr", "mmfl-gvr"),
    ],
)
def test_with_one_task_every_split_is_fedavg_on_sampled_clients_and_its_turn_is_always(method, other):
    federation = single(UNEQUAL, epochs=2)
    assert torch.equal(weights_of(federation, method, rate=0.4), weights_of(federation, other, rate=0.4))


@pytest.mark.parametrize("method", ["scaffold", "fedstale", "fedvarp"])
def test_memory_counts_from_the_second_round_on(method):
    def is_random(last: int) -> bool:
        return torch.equal(weights_of(moving(), method, last, RATE), weights_of(moving(), "random", last, RATE))

    assert (is_random(1), is_random(2)) == (True, False)


# Methods nobody has named.

ALLOCATED = [
    *(name for name in ALLOCATIONS if name not in ("fixed", "round-robin-tasks", "sequential-tasks", "warm-up")),
    {"name": "fixed", "probabilities": 0.4},
    {"name": "round-robin-tasks", "inner": "residual-variance"},
    {"name": "sequential-tasks", "inner": {"name": "update-variance", "mix": 0.1}, "rounds": 3},
    {"name": "warm-up", "inner": {"name": "loss-variance", "draw": "without-repeats"}},
]
ROBUST = ("median", "trimmed-mean", "krum", "multi-krum", "geometric-median")
STALENESS = {"name": "staleness-weighted", "inner": "unbiased"}
MEMORYLESS = ("average", "unbiased", "self-normalised", "fedbuff", "fedasync", *ROBUST, STALENESS)
AGGREGATED = [
    *(name for name in AGGREGATIONS if name not in ("adam", "momentum", "norm-clipping", "staleness-weighted")),
    {"name": "norm-clipping", "inner": "fedvarp"},
    STALENESS,
    {"name": "adam", "inner": "stalevre"},
    {"name": "momentum", "inner": {"name": "stalevr", "keep": {"precision": "float16"}}, "lr": 0.3},
]


def test_every_allocation_goes_with_aggregations_and_local_rules_of_every_kind():
    """Every other pair: each allocation meets half of the aggregations, and neighbours in the tables the other half."""
    pairs = [
        (i, j)
        for i in range(len(ALLOCATED))
        for j in range(i % 2, len(AGGREGATED), 2)
        if ALLOCATED[i] != "expected-residual-variance" or AGGREGATED[j] not in MEMORYLESS
    ]
    methods = [
        {
            "name": f"{i} {j}",
            "allocation": ALLOCATED[i],
            "aggregation": AGGREGATED[j],
            "local": list(LOCAL_RULES)[(i + j) // 2 % len(LOCAL_RULES)],
        }
        for i, j in pairs
    ]
    result = mmfl.compare(moving(), methods, 7, RATE, engine="vectorised", evaluate_every=7)
    for (i, j), run in zip(pairs, result, strict=True):
        combined = torch.cat(run.weights)
        assert combined.abs().max() < 50, (ALLOCATED[i], AGGREGATED[j])
        assert run.costs["trainings"].sum() > 0
    assert len({ALLOCATIONS[read_spec("", a)[0]] for a in ALLOCATED}) == len(ALLOCATIONS)
    assert len({AGGREGATIONS[read_spec("", a)[0]] for a in AGGREGATED}) == len(AGGREGATIONS)


def test_little_room_for_updates_changes_no_method(monkeypatch):
    """Tasks then train one after the other, each gone into its weights before the next."""
    engine = Simulation("cpu", "vectorised")
    engine.room = 1
    asked = []
    monkeypatch.setattr(
        engine, "train", lambda trainings: asked.append(len(trainings)) or Simulation.train(engine, trainings)
    )
    replicas = start(engine)
    for _ in rounds(replicas, engine, 3):
        pass
    assert min(asked) == 1
    for replica in replicas:
        wanted = history(replica.method.name).weights[3]
        for mine, theirs in zip(replica.state.weights, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
