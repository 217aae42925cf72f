"""All ways of training give the same numbers, and those of a loop written by hand."""

from dataclasses import replace

import pytest
import torch
from kinds import KINDS
from small import (
    ask,
    assert_agree,
    assert_trained_by_hand,
    both_modes,
    federation,
    has_recorded,
    recording_engine,
    train,
    train_alone,
)

from mmfl.engine import Simulation
from mmfl.engine.architecture import Architecture
from mmfl.engine.operators import FASTER_ON_GPU
from mmfl.local import PlainSGD, Prox

every_kind = pytest.mark.parametrize("kind", KINDS)
FULL = ["perceptron", "larger cnn", "lstm, two layers", "transformer with dropout", "batch norm"]


@pytest.mark.parametrize(("kind", "batch_size"), [*((kind, 4) for kind in KINDS), *((kind, None) for kind in FULL)])
def test_cohorts_recorded_cohorts_and_clients_alone_train_alike_for(kind, batch_size):
    """A recorded step is padded to a round number of jobs and examples."""
    task = KINDS[kind]
    pool = federation(replace(task, batch_size=batch_size, epochs=min(task.epochs, 2)))
    engine, recording = Simulation("cpu", "vectorised"), recording_engine()
    (vectorised,), (recorded,) = (train(each, ask(each, pool)) for each in (engine, recording))
    assert engine.architecture(pool.tasks[0]).vectorisable
    assert has_recorded(recording) != recording.architecture(pool.tasks[0]).coupled
    assert_agree(vectorised, train_alone(pool, mode="sequential"))
    assert_agree(recorded, vectorised)


@pytest.mark.parametrize("kind", ["celeba cnn, batch norm", "residual network, batch norm"])
def test_clients_with_as_many_examples_share_a_cohort_but_not_their_batches_for(kind):
    pool = federation(KINDS[kind], sizes=(6, 6, 6))
    assert_agree(train_alone(pool), train_alone(pool, mode="sequential"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@both_modes
@every_kind
def test_training_on_a_gpu_agrees_with_a_cpu_for(kind, mode):
    pool, engine = federation(KINDS[kind]), Simulation("cuda", mode)
    with torch.backends.cudnn.flags(allow_tf32=False):
        (gpu,) = train(engine, ask(engine, pool))
    assert_agree(gpu, train_alone(pool, mode="sequential"), tolerance=1e-3)
    if mode == "vectorised":
        cpu = Simulation("cpu", mode)
        train(cpu, ask(cpu, pool))
        assert engine.architecture(pool.tasks[0]).vectorisable == cpu.architecture(pool.tasks[0]).vectorisable


LINEAR = ["perceptron", "tied weights", "frozen weight", "half unseen", "part of a weight", "linear without bias"]
LINEAR += ["changed in place", "weight norm"]
BY_HAND = ["small cnn", "lstm", "character lstm", "strided convolution of single pixels", "two inputs and two heads"]
BY_HAND += ["tokens with a mask", "several labels, weighted", "strided convolution", "grouped convolution"]
BY_HAND += [f"attention as a function{options}" for options in ("", ", causal", ", masked", ", biased, grouped")]


@pytest.mark.parametrize("rule", [PlainSGD(), Prox(0.5)], ids=["sgd", "prox"])
@pytest.mark.parametrize("mode", ["vectorised", "vectorised, as on a GPU", "sequential"])
@pytest.mark.parametrize("kind", LINEAR + BY_HAND)
def test_training_equals_a_loop_written_by_hand_for(kind, mode, rule, monkeypatch):
    """The gradients of linear layers stay factored, on a GPU in cohorts as well."""
    pool, engine = federation(replace(KINDS[kind], batch_size=None)), Simulation("cpu", mode.split(",")[0])
    if "GPU" in mode:
        own = Architecture.cohort_operators
        operators = lambda self, device: own(self, device) | FASTER_ON_GPU & self.operators  # noqa: E731
        monkeypatch.setattr(Architecture, "cohort_operators", operators)
    assert_trained_by_hand(engine, ask(engine, pool, local=rule), mu=getattr(rule, "mu", 0.0))
    architecture = engine.architecture(pool.tasks[0])
    assert architecture.vectorisable is (None if mode == "sequential" else True)
    assert ("strided_1x1" in architecture.operators) == (kind == "strided convolution of single pixels")


@every_kind
def test_initial_weights_are_those_of_the_module_for(kind):
    pool, engine = federation(KINDS[kind]), Simulation("cpu")
    module = pool.tasks[0].build(seed=5, task=0)
    start, batch_norm = engine.initial(pool, 0, seed=5), engine.initial_batch_norm(pool, 0, seed=5)
    values = engine.architecture(pool.tasks[0]).layout.values(start, batch_norm)
    expected = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert {name for name, p in module.named_parameters() if p.requires_grad} <= set(values)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in values.items())


@both_modes
def test_what_needs_no_gradient_never_moves(mode):
    pool, engine = federation(KINDS["an unused parameter"]), Simulation("cpu", mode)
    (answer,) = train(engine, ask(engine, pool))
    updates = engine.architecture(pool.tasks[0]).layout.named(answer.flat)
    assert (updates["idle.weight"] == 0).all()
    assert (updates["output.weight"].flatten(1).abs().amax(1) > 0).all()


@both_modes
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "dropout" in kind])
def test_dropout_differs_from_round_to_round_for(kind, mode):
    pool = federation(replace(KINDS[kind], batch_size=None, epochs=1), sizes=(6,))
    engine = Simulation("cpu", mode)
    updates = [train(engine, ask(engine, pool, round=round))[0].flat for round in (1, 2)]
    assert not torch.allclose(*updates, rtol=1e-2, atol=1e-3)
