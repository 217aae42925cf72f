# %% [markdown]
# # Your own models, data, loss, metric and method
#
# Thirty people wear a device that measures a short signal. Two models are to be trained on it: which of three
# exercises a person is doing, and how much energy it takes. Everything here is made in this file: the data, two
# `nn.Module`s (one with two inputs), a loss, a metric and a rule for who trains what.
#
# Run it as a script (`python examples/own_models.py`, `--quick` for a short form) or cell by cell.

# %%
import os
import sys

import numpy as np
import torch
from torch import Tensor, nn

import mmfl

QUICK = "--quick" in sys.argv or "MMFL_QUICK" in os.environ
ROUNDS, SEEDS = (10, 1) if QUICK else (100, 3)

# %% [markdown]
# ## Data: arrays, and whose rows they are
#
# A signal is 24 numbers; with it come two facts about the person, weight and age. `owner` may be numbers or names:
# each owner becomes a client, and a fifth of everybody's rows is set aside for testing.

# %%
SIGNAL, FACTS, EXERCISES, PEOPLE = 24, 2, 3, 30

rng = np.random.default_rng(0)
rows_of = rng.integers(20, 120, PEOPLE)
person = np.repeat(np.arange(PEOPLE), rows_of)
facts = rng.normal(size=(PEOPLE, FACTS))[person]
exercise = rng.integers(0, EXERCISES, len(person))
pace = 1 + exercise + 0.3 * rng.normal(size=PEOPLE)[person]
strength = np.exp(0.4 * rng.normal(size=len(person)))
time = np.linspace(0, 2 * np.pi, SIGNAL)
phase = rng.uniform(0, 2 * np.pi, len(person))
wave = strength[:, None] * np.sin(pace[:, None] * time + phase[:, None])
signal = wave + 0.3 * rng.normal(size=wave.shape)
energy = pace * strength * np.exp(0.3 * facts[:, 0])

owner = [f"person {number}" for number in person]
exercises = mmfl.data.from_arrays(signal, exercise, owner, name="exercises")
energies = mmfl.data.from_arrays(np.hstack([signal, facts]), energy, owner, name="energies")

# %% [markdown]
# ## Models: any `nn.Module`
#
# The first is a small convolution over time. The second has two inputs: a data set keeps one array of inputs, so
# signal and facts lie side by side in a row, and the module takes them apart.


# %%
class Recogniser(nn.Module):
    """Which exercise a signal is of."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, 8, kernel_size=5), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(80, EXERCISES)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x[:, None])


class Meter(nn.Module):
    """How much energy it took, from a signal and two facts about the person, each with a branch of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.signal = nn.Sequential(nn.Linear(SIGNAL, 32), nn.ReLU())
        self.facts = nn.Sequential(nn.Linear(FACTS, 8), nn.Tanh())
        self.together = nn.Linear(32 + 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        signal, facts = x.split([SIGNAL, FACTS], dim=1)
        return self.together(torch.cat([self.signal(signal), self.facts(facts)], dim=1))


# %% [markdown]
# ## Loss and metric: any function with a value per example
#
# Large errors of the meter should not dominate, so its loss grows like the distance beyond 1. The metric is an error:
# it says so, and is then left out of the mean over tasks.


# %%
def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.huber_loss(outputs[:, 0], targets, reduction="none")


def relative_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets).abs() / targets


relative_error.lower_is_better = True

tasks = [
    mmfl.Task("exercise", Recogniser, exercises, lr=0.1, epochs=3, batch_size=20),
    mmfl.Task("energy", Meter, energies, lr=0.05, epochs=3, batch_size=20, loss=huber, metric=relative_error),
]
federation = mmfl.Federation(tasks, capacity=[1, 2], seed=0)
print(federation)
federation

# %% [markdown]
# ## A method: who trains what
#
# The rule below asks for the clients' losses and draws with probabilities that grow with them. It returns how many
# processors of each client train each task, and the probability that one does, by which `Unbiased` weighs the updates.
# Aggregations and local rules can be your own as well, and all of them may have a memory.


# %%
class ByLoss(mmfl.AllocationRule):
    """Who has the larger loss is drawn more often."""

    needs = frozenset({"losses"})

    def allocate(self, view: mmfl.RoundView, state: None) -> tuple[mmfl.Allocation, None]:
        wish = view.able * (0.5 + view.losses / view.losses.mean(0))
        probability = wish / wish.sum(1).max()  # a processor trains one task or none
        expected = view.capacity @ probability.sum(1)
        probability *= min(1.0, view.budget / expected)
        return mmfl.Allocation.of(mmfl.allocation.sampling.independent(probability, view), probability), state


by_loss = mmfl.Method("by-loss", ByLoss(), mmfl.aggregation.Unbiased())

# %%
result = mmfl.compare(federation, [by_loss, "random", "mmfl-lvr"], rounds=ROUNDS, rate=0.3, seeds=SEEDS)
print(result.table()[["exercise", "energy", "trainings", "forward_passes"]].round(3).to_string())
result

# %% [markdown]
# ## Using the models

# %%
run = result.of("by-loss")[0]
meter = run.module("energy")
guessed = meter(energies.x_test[:5])[:, 0]
print("energy guessed", guessed.detach().numpy().round(1), "measured", energies.y_test[:5].numpy().round(1))
run
