# %% [markdown]
# # Adapters for several tasks over one frozen base
#
# A network is trained once, in one place, on public pictures of digits. Later thirty clients have pictures of their
# own, turned by a quarter, and three questions about them: which digit is it, is it even, does it have a loop? Each
# question gets low-rank adapters (LoRA) and a head of its own; the base stays frozen, exists once in memory, and is
# never sent. How much is lost against training everything, and how much is saved?
#
# Run it as a script (`python examples/adapters.py`, `--quick` for a short form) or cell by cell.

# %%
import os
import sys

import torch
from torch import Tensor, nn

import mmfl

QUICK = "--quick" in sys.argv or "MMFL_QUICK" in os.environ
ROUNDS, EPOCHS = (3, 5) if QUICK else (60, 60)

# %% [markdown]
# ## The base
#
# Any module will do; one of `transformers` or `peft` as well. This one is trained here, in a few seconds, on the first
# half of the pictures.


# %%
class Base(nn.Module):
    """Three hidden layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 128)
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the digits."""
        for layer in (self.first, self.second, self.third):
            x = torch.relu(layer(x.flatten(1)))
        return self.head(x)


digits = mmfl.data.digits()
half = len(digits.x) // 2
torch.manual_seed(0)
base = Base()
optimiser = torch.optim.Adam(base.parameters(), lr=0.001)
for _ in range(EPOCHS):
    for rows in torch.randperm(half).split(32):
        optimiser.zero_grad()
        nn.functional.cross_entropy(base(digits.x[rows]), digits.y[rows]).backward()
        optimiser.step()
with torch.no_grad():
    upright = (base(digits.x_test).argmax(1) == digits.y_test).float().mean()
    sideways = (base(digits.x_test.rot90(1, (2, 3))).argmax(1) == digits.y_test).float().mean()
print(f"the base recognises {upright:.0%} of the digits, and {sideways:.0%} of those that are turned")

# %% [markdown]
# ## Three tasks on the clients' pictures
#
# The second half, turned by a quarter. Tasks that share their pictures share the tensor, too.

# %%
turned = {"x": digits.x[half:].rot90(1, (2, 3)), "x_test": digits.x_test.rot90(1, (2, 3))}
LOOPS = torch.tensor([1, 0, 0, 0, 0, 0, 1, 0, 1, 1])  # 0, 6, 8 and 9 have one
ANSWERS = {"digit": (10, lambda y: y), "even": (2, lambda y: y % 2), "loop": (2, lambda y: LOOPS[y])}


def tasks(model) -> list[mmfl.Task]:
    """One task for each question; `model(classes)` makes the network."""
    return [
        mmfl.Task(
            name,
            lambda classes=classes: model(classes),
            mmfl.data.Dataset(name, y=answer(digits.y[half:]), y_test=answer(digits.y_test), **turned),
            lr=0.005,
            optimiser=mmfl.optimisers.Adam(),
            epochs=2,
            batch_size=16,
        )
        for name, (classes, answer) in ANSWERS.items()
    ]


# %% [markdown]
# Three ways to adapt the base: all of it, a new head alone, or adapters of rank 8 on all layers and a new head.


# %%
def everything(classes: int) -> Base:
    """A copy of the base that is trained as a whole, with a head of its own."""
    network = Base()
    network.load_state_dict(base.state_dict())
    network.head = nn.Linear(128, classes)
    return network


def head(classes: int) -> nn.Module:
    """The frozen base with a head of its own: what is frozen in a module is not trained, stored or sent."""
    network = everything(classes).requires_grad_(False)
    network.head.requires_grad_(True)
    return network


def adapters(classes: int) -> nn.Module:
    """The frozen base with low-rank updates, and a head of its own."""
    return mmfl.models.lora(base, rank=8, heads={"head": nn.Linear(128, classes)})


# %%
for model in (everything, head, adapters):
    federation = mmfl.Federation(tasks(model), clients=30, partition=mmfl.partition.dirichlet(1.0), seed=0)
    run = mmfl.train(federation, "multi-fedavg", rounds=ROUNDS, rate=0.4)
    scores = "  ".join(f"{task} {run.final()[task]:.2f}" for task in run.tasks)
    print(f"{model.__name__:10}  {scores}  {run.costs['bytes_up'].mean() / 1e6:5.2f} MB sent in a round")

# %% [markdown]
# ## Using the result
#
# A module is the base with the task's adapters; its state dict has both. All three share the base's memory.

# %%
modules = {task: run.module(task) for task in run.tasks}
answers = {task: module(turned["x_test"][:8]).argmax(1).tolist() for task, module in modules.items()}
print("of", digits.y_test[:8].tolist(), answers)
