"""Local optimisers against torch's own, in every way of training."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from small import IMAGES, VECTORS, ask, federation, recording_engine, task, train
from torch import Tensor, nn

from mmfl import models
from mmfl.engine import Simulation
from mmfl.federation.optimisers import SGD, Adam, AdamW, Optimiser
from mmfl.federation.schedules import Cosine, LinearWarmUp
from mmfl.local import LocalRule, LocalStep, Prox, recordable

OPTIMISERS = {
    "weight decay": (SGD(weight_decay=0.1), lambda p, lr: torch.optim.SGD(p, lr, weight_decay=0.1)),
    "momentum": (SGD(momentum=0.9), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
    "Nesterov": (
        SGD(momentum=0.8, nesterov=True, weight_decay=0.05),
        lambda p, lr: torch.optim.SGD(p, lr, momentum=0.8, nesterov=True, weight_decay=0.05),
    ),
    "Adam": (Adam(), torch.optim.Adam),
    "Adam, other settings": (
        Adam(beta1=0.5, beta2=0.9, eps=1e-3, weight_decay=0.1),
        lambda p, lr: torch.optim.Adam(p, lr, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1),
    ),
    "AdamW": (AdamW(weight_decay=0.1), lambda p, lr: torch.optim.AdamW(p, lr, weight_decay=0.1)),
    "clipped by norm": (SGD(clip_norm=0.3), torch.optim.SGD),
    "clipped by value": (SGD(momentum=0.9, clip_value=0.02), lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9)),
}
MODELS = {
    "linear": (lambda: models.Perceptron(6, 5, 3), VECTORS),
    "convolutional": (lambda: models.SmallCNN(8, 2, (3, 4), 5, 3, padding=1), IMAGES),
}


def engine_of(way: str) -> Simulation:
    return recording_engine() if way == "recorded" else Simulation("cpu", way)


def by_torch(asked, make, factor=lambda step, steps: 1.0, mu: float = 0.0) -> Tensor:
    """Every client trains alone on all of its data, with torch's optimiser; start minus end, [clients, parameters]."""
    work, layout = asked.federation.tasks[0], Simulation("cpu").architecture(asked.federation.tasks[0]).layout
    updates = []
    for client in asked.client:
        module = work.build()
        module.load_state_dict(layout.named(asked.weights), strict=False)
        optimiser = make(module.parameters(), lr=work.lr)
        rows = asked.federation.shards[0].of(client)
        for step in range(1, work.epochs + 1):
            optimiser.param_groups[0]["lr"] = work.lr * factor(step, work.epochs)
            optimiser.zero_grad()
            loss = work.loss(module(work.data.x[rows]), work.data.y[rows]).mean()
            pull = (layout.flatten(list(module.parameters())) - asked.weights).square().sum()
            (loss + mu / 2 * pull).backward()
            if work.optimiser.clip_value is not None:
                nn.utils.clip_grad_value_(module.parameters(), work.optimiser.clip_value)
            if work.optimiser.clip_norm is not None:
                nn.utils.clip_grad_norm_(module.parameters(), work.optimiser.clip_norm)
            optimiser.step()
        updates.append(asked.weights - layout.weights(module))
    return torch.stack(updates)


ways = pytest.mark.parametrize("way", ["vectorised", "sequential", "recorded"])


@ways
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_local_training_is_that_of_torchs_optimiser(name, model, way):
    (optimiser, native), (make, x) = OPTIMISERS[name], MODELS[model]
    work = task(make, x, lr=0.05, epochs=4, batch_size=None, optimiser=optimiser)
    engine, pool = engine_of(way), federation(work)
    asked = ask(engine, pool)
    (answer,) = train(engine, asked)
    torch.testing.assert_close(answer.flat, by_torch(asked, native), rtol=1e-4, atol=2e-6)


@ways
def test_a_proximal_term_goes_through_the_optimiser_as_a_part_of_the_loss(way):
    work = task(MODELS["linear"][0], lr=0.05, epochs=4, batch_size=None, optimiser=Adam())
    engine, pool = engine_of(way), federation(work)
    asked = ask(engine, pool, local=Prox(0.5))
    (answer,) = train(engine, asked)
    torch.testing.assert_close(answer.flat, by_torch(asked, torch.optim.Adam, mu=0.5), rtol=1e-4, atol=2e-6)


@ways
@pytest.mark.parametrize("schedule", [LinearWarmUp(3), Cosine(0.1), Cosine(warm_up=2)], ids=repr)
def test_the_learning_rate_follows_its_schedule_over_local_steps(schedule, way):
    work = task(MODELS["linear"][0], epochs=5, batch_size=None, optimiser=SGD(momentum=0.5), lr_steps=schedule)
    engine, pool = engine_of(way), federation(work)
    asked = ask(engine, pool)
    (answer,) = train(engine, asked)
    native = by_torch(asked, lambda p, lr: torch.optim.SGD(p, lr, momentum=0.5), schedule)
    torch.testing.assert_close(answer.flat, native, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("way", ["sequential", "recorded"])
def test_jobs_of_different_lengths_train_alike_in_every_way(way):
    """Batches of 4 of 1 to 13 examples: some clients are done long before others, in cohorts too."""
    work = task(MODELS["linear"][0], optimiser=AdamW(clip_norm=0.5), lr=0.01, lr_steps=Cosine(warm_up=1))
    answers = []
    for each in ("vectorised", way):
        engine = engine_of(each)
        answers += train(engine, ask(engine, federation(work)))
    torch.testing.assert_close(answers[0].flat, answers[1].flat, rtol=1e-4, atol=1e-6)


def test_tasks_with_different_optimisers_train_apart():
    work = task(MODELS["linear"][0], optimiser=SGD(momentum=0.9))
    other = replace(work, name="other", optimiser=Adam())
    engine, pool = Simulation("cpu", "vectorised"), federation(work, other)
    together = train(engine, ask(engine, pool), ask(engine, pool, 1))
    for number, answer in enumerate(together):
        (alone,) = train(Simulation("cpu", "vectorised"), ask(engine, pool, number))
        torch.testing.assert_close(answer.flat, alone.flat)
    assert not torch.allclose(together[0].flat, together[1].flat, rtol=0.1)


@dataclass(frozen=True)
class Sign(Optimiser):
    """A user's own: the sign of the momentum."""

    @property
    def state_vectors(self) -> int:
        return 1

    def direction(self, gradient, weights, state, number):
        state[0].lerp_(gradient, 0.5)
        return state[0].sign() / number.to(gradient)


@dataclass(frozen=True)
class Normalised(LocalRule):
    """A user's own: the gradient's direction alone."""

    needs_norm = True

    @recordable
    def direction(self, step: LocalStep) -> Tensor:
        return step.gradient / step.norm


@ways
def test_optimisers_and_rules_of_ones_own_have_state_numbers_and_norms(way):
    work = task(MODELS["linear"][0], optimiser=Sign(), lr=0.1, epochs=2, batch_size=None)
    engine, pool = engine_of(way), federation(work)
    (answer,) = train(engine, ask(engine, pool))
    moved = answer.flat.abs()
    ends = torch.stack([(moved - end).abs() for end in (0.0, 0.05, 0.1, 0.15)]).amin(0)
    assert ends.max() < 1e-6
    work = task(MODELS["linear"][0], lr=0.1, epochs=1, batch_size=None)
    engine, pool = engine_of(way), federation(work)
    (answer,) = train(engine, ask(engine, pool, local=Normalised()))
    np.testing.assert_allclose(answer.flat.norm(dim=1), 0.1, rtol=1e-5)
