"""The round loop: lockstep, dynamics, faulty clients, diagnostics, and what the methods promise."""

import numpy as np
import pytest
import torch

import mmfl
from mmfl.engine import Simulation, Trained
from mmfl.methods import METHODS, make_method
from mmfl.training import Replica, rounds


def digits(tasks: int = 2, clients: int = 12, **options) -> mmfl.Federation:
    data = mmfl.data.digits()
    made = [
        mmfl.Task(f"task{s}", mmfl.models.LogisticRegression, data, lr=0.2, epochs=2, batch_size=8)
        for s in range(tasks)
    ]
    return mmfl.Federation(made, clients, partition=mmfl.partition.labels(0.3), **options)


def weights_of(run: mmfl.Run) -> torch.Tensor:
    return torch.cat([w.cpu() for w in run.weights])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method):
    run = mmfl.train(digits(), method, rounds=15, rate=0.5, engine="vectorised")
    assert run.summary["mean"].iloc[-1] > 0.4 > run.summary["mean"].iloc[0] - 0.2
    assert len(run.accuracy) == 15


def test_a_seed_gives_the_same_numbers_alone_and_among_four_replicas_in_lockstep():
    alone = mmfl.train(digits(capacity="mixed"), "mmfl-lvr", rounds=8, rate=0.3, seed=1)
    crowd = mmfl.compare(digits(capacity="mixed"), ["mmfl-lvr"], rounds=8, rate=0.3, seeds=4).runs[1]
    assert crowd.seed == 1
    torch.testing.assert_close(weights_of(alone), weights_of(crowd), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(alone.participation, crowd.participation)
    np.testing.assert_allclose(alone.accuracy, crowd.accuracy, atol=0.01)


def test_methods_compared_in_lockstep_give_what_each_gives_alone():
    together = mmfl.compare(digits(), ["random", "mmfl-lvr", "full"], rounds=5, rate=0.4)
    for run in together:
        alone = mmfl.train(digits(), run.method, rounds=5, rate=0.4)
        torch.testing.assert_close(weights_of(alone), weights_of(run), rtol=1e-4, atol=1e-5)


def test_vectorised_and_sequential_runs_agree():
    runs = [mmfl.train(digits(), "mmfl-lvr", rounds=6, rate=0.4, engine=e) for e in ("vectorised", "sequential")]
    torch.testing.assert_close(*map(weights_of, runs), rtol=1e-4, atol=1e-5)


def test_a_seed_repeats_and_another_differs():
    first, again, other = (mmfl.train(digits(), "random", rounds=4, rate=0.4, seed=s) for s in (0, 0, 1))
    assert torch.equal(weights_of(first), weights_of(again))
    assert not torch.equal(weights_of(first), weights_of(other))


def test_full_participation_takes_the_mean_step_of_all_clients():
    federation, engine = digits(), Simulation(mode="vectorised")
    replica = Replica.start(federation, make_method("full"), 0, 0.1, engine)
    before = [w.clone() for w in replica.state.weights]
    share = federation.sizes / federation.sizes.sum(0)
    next(rounds([replica], engine, 1))
    for s, weights in enumerate(replica.state.weights):
        clients = np.arange(federation.clients)
        training = mmfl.engine.Training(federation, s, before[s], clients, 1, 0, replica.method.local)
        (trained,) = engine.train([training])
        step = torch.from_numpy(share[trained.client, s]).to(trained.flat) @ trained.flat
        torch.testing.assert_close(weights, before[s] - step, rtol=1e-4, atol=1e-6)


class Faulty(Simulation):
    """An engine whose client 3 sends back nonsense."""

    def train(self, trainings):
        answers = super().train(trainings)
        for answer in answers:
            answer.flat[torch.from_numpy(answer.client == 3)] = float("nan")
        return answers


def test_updates_that_are_not_numbers_are_rejected_counted_and_cost_nothing_else():
    federation = digits()
    engine = Faulty(mode="vectorised")
    replica = Replica.start(federation, make_method("full"), 0, 1.0, engine)
    history = [records[0] for records in rounds([replica], engine, 3)]
    assert all(task["rejected"] == 1 and task["active"] == 11 for r in history for task in r["tasks"].values())
    assert all(torch.isfinite(w).all() for w in replica.state.weights)


def test_clients_and_tasks_take_part_from_their_arrival_on():
    federation = digits(arrivals=[1] * 6 + [4] * 6, task_arrivals={"task1": 3})
    run = mmfl.train(federation, "full", rounds=5, rate=1.0)
    drawn = [record["drawn"] for record in run.records]
    assert [set(d) for d in drawn] == [{"task0"}] * 2 + [{"task0", "task1"}] * 3
    assert [len(d["task0"][0]) for d in drawn] == [6, 6, 6, 12, 12]
    assert run.accuracy["task1"].isna().tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_with_arrivals_absences_and_missing_tasks(method):
    federation = digits(
        tasks=3,
        capacity="mixed",
        lacks=0.3,
        arrivals=[1] * 8 + [3] * 4,
        task_arrivals={"task2": 4},
        availability=mmfl.Bernoulli(0.6),
    )
    run = mmfl.train(federation, method, rounds=8, rate=0.5)
    assert torch.isfinite(weights_of(run)).all()
    assert (run.participation.to_numpy()[federation.sizes == 0] == 0).all()


def test_rounds_without_any_client_leave_the_weights_alone():
    nobody = np.zeros((2, 12), dtype=bool)
    federation = digits(availability=mmfl.Trace(nobody))
    for method in METHODS:
        run = mmfl.train(federation, method, rounds=2, rate=0.5)
        initial = torch.cat([Simulation("cpu").initial(federation, s, 0) for s in range(2)])
        assert torch.equal(weights_of(run), initial)


def test_costs_count_trainings_passes_and_bytes():
    federation = digits()
    parameters = 4 * 650
    lvr = mmfl.train(federation, "mmfl-lvr", rounds=2, rate=0.5).costs
    full = mmfl.train(federation, "full", rounds=2).costs
    assert (full["trainings"] == 24).all()
    assert (full["bytes_up"] == 24 * parameters).all()
    assert (full["forward_passes"] == 0).all()
    assert (lvr["forward_passes"] == 24).all()
    assert (lvr["bytes_down"] == 24 * parameters).all()  # everyone evaluates, so everyone needs the weights
    assert (lvr["bytes_up"] == lvr["trainings"] * parameters + 24 * 4).all()


def test_diagnosis_measures_losses_for_any_method_and_charges_nothing():
    plain, diagnosed = (mmfl.train(digits(), "random", rounds=2, rate=0.5, diagnose=d) for d in (False, True))
    assert plain.frame("loss_variance").isna().all(axis=None)
    assert (diagnosed.frame("loss_variance") > 0).all(axis=None)
    assert diagnosed.costs.equals(plain.costs)
    assert torch.equal(weights_of(plain), weights_of(diagnosed))


def test_lvr_comes_between_random_and_full_participation():
    """The order the paper reports, on clients of very unequal data, over seeds that also redraw the partition."""

    def federation(seed: int) -> mmfl.Federation:
        sizes = mmfl.partition.high_low(0.1, (80, 120), (8, 12))
        data = mmfl.data.digits()
        tasks = [mmfl.Task(n, mmfl.models.LogisticRegression, data, lr=0.3, epochs=5) for n in "abc"]
        return mmfl.Federation(
            tasks, 60, partition=mmfl.partition.labels(0.3, sizes), capacity="mixed", lacks=0.1, seed=seed
        )

    means = mmfl.compare(federation, ["random", "mmfl-lvr", "full"], rounds=40, rate=0.1, seeds=4).table()["mean"]
    assert means["random"] + 0.01 < means["mmfl-lvr"] < means["full"] - 0.01


def test_evaluation_can_be_rarer_than_rounds_but_never_misses_the_last():
    run = mmfl.train(digits(), "random", rounds=7, rate=0.5, evaluate_every=3)
    assert run.accuracy.index.tolist() == [3, 6, 7]
    assert len(run.step_size) == 7


def test_regression_and_sequence_tasks_train_beside_classification():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 5)).astype(np.float32)
    line = mmfl.data.from_arrays(x, x @ np.arange(5, dtype=np.float32), owner=np.arange(200) % 10)
    text = rng.integers(0, 4, size=(200, 1)) + np.arange(7)
    text = mmfl.data.from_arrays(text[:, :-1] % 4, text[:, 1:] % 4, owner=np.arange(200) % 10)
    objectives = mmfl.objectives
    tasks = [
        mmfl.Task(
            "line",
            lambda: torch.nn.Linear(5, 1),
            line,
            lr=0.1,
            epochs=5,
            loss=objectives.squared_error,
            metric=objectives.absolute_error,
        ),
        mmfl.Task(
            "text",
            lambda: mmfl.models.CharacterLSTM(4, 8, 16, 1),
            text,
            lr=1.0,
            epochs=5,
            loss=objectives.next_token,
        ),
    ]
    run = mmfl.train(mmfl.Federation(tasks), "full", rounds=12)
    assert run.accuracy["line"].iloc[-1] < 0.2 * run.accuracy["line"].iloc[0]
    assert run.accuracy["text"].iloc[-1] > 0.95
    assert run.summary["mean"].iloc[-1] == run.accuracy["text"].iloc[-1]  # an error is not averaged with a score


def test_full_participation_follows_the_published_curve_on_the_quadratic_federation():
    """FedAvg by hand in float64 on F_k = w'A_k w / 2 - b_k'w + mu/2 |w|^2."""
    mu, lr, steps = 2e-4, 0.1, 5
    data = mmfl.data.quadratic(clients=6, block=2)
    task = mmfl.Task(
        "quadratic",
        lambda: mmfl.models.Quadratic(13, mu),
        data,
        lr=lr,
        epochs=steps,
        loss=mmfl.objectives.value,
        metric=mmfl.objectives.value,
    )
    run = mmfl.train(mmfl.Federation([task]), "full", rounds=50)
    A, b = data.x[:, :, :-1].double(), data.x[:, :, -1].double()
    w = torch.zeros(13, dtype=torch.float64)
    for _ in range(50):
        local = w.expand(6, 13).clone()
        for _ in range(steps):
            local -= lr * ((A @ local[:, :, None])[:, :, 0] - b + mu * local)
        w = local.mean(0)
    torch.testing.assert_close(run.weights[0].cpu().double(), w, rtol=1e-3, atol=1e-5)


def test_an_engine_may_answer_in_any_order():
    class Shuffled(Simulation):
        def train(self, trainings):
            answers = super().train(trainings)
            order = [np.random.default_rng(0).permutation(len(a.client)) for a in answers]
            return [
                Trained(a.client[o], a.flat[torch.from_numpy(o)], a.loss[o], a.steps[o])
                for a, o in zip(answers, order, strict=True)
            ]

    results = []
    for engine in (Simulation(mode="vectorised"), Shuffled(mode="vectorised")):
        replica = Replica.start(digits(), make_method("random"), 0, 0.5, engine)
        for _ in rounds([replica], engine, 3):
            pass
        results.append(torch.cat(replica.state.weights))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rate", [0, -0.1, 1.01, float("nan")])
def test_a_rate_outside_0_1_is_refused(rate):
    with pytest.raises(mmfl.UserError, match=r"rate is .*expected a share"):
        mmfl.train(digits(), "random", rounds=1, rate=rate)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds is 0"),
        ({"evaluate_every": 0}, "evaluate_every is 0"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"seeds": []}, "no seeds"),
        ({"seeds": [1, 1]}, "seeds .* repeat"),
        ({"methods": []}, "no methods"),
        ({"methods": ["full", "full"]}, "methods .* repeat"),
        ({"methods": ["mmfl-lrv"]}, "did you mean 'mmfl-lvr'"),
        ({"resume": True}, "resume needs"),
        ({"device": "cdua"}, "unknown device 'cdua'"),
        ({"engine": "vectorized"}, "did you mean 'vectorised'"),
    ],
)
def test_mistakes_in_the_call_are_named(options, message):
    arguments = {"methods": ["random"], "rounds": 1, **options}
    with pytest.raises(mmfl.UserError, match=message):
        mmfl.compare(digits(), **arguments)
