# %% [markdown]
# # The five tasks of a paper
#
# Zhang et al. 2025 train five models over 120 clients: Fashion-MNIST twice, CIFAR-10, EMNIST and Shakespeare. The
# preset `lvr-5tasks` is that federation. We compare three methods with full participation, and put the paper's
# numbers beside ours.
#
# Run it as a script (`python examples/papers_tasks.py`) or cell by cell. The full form reads the data sets from
# `$MMFL_DATA`, or downloads those that have an official address, and wants a GPU. The quick form (`--quick`, or where
# files are missing) trains small models on data that comes with the package.

# %%
import os
import sys

import pandas as pd

import mmfl
from mmfl.papers.variance.table1 import PAPER

QUICK = "--quick" in sys.argv or "MMFL_QUICK" in os.environ

# %% [markdown]
# ## A preset, and what is changed of it
#
# A preset is a configuration; settings change it as `--set` does on the command line. In the quick form the pictures
# are handwritten digits, and the plays a text from a random chain of characters.

# %%
CHARACTERS = "{ name = 'character-lstm', vocabulary = 6, embedding = 6, hidden = 12, layers = 1 }"
SMALL = {
    "fashion-a": {"data": "digits", "model": "logistic", "lr": 0.3},
    "fashion-b": {"data": "digits", "model": "logistic", "lr": 0.3},
    "cifar10": {"data": "digits", "model": "perceptron", "lr": 0.3},
    "emnist": {"data": "digits", "model": "perceptron", "lr": 0.3},
    "shakespeare": {"data": "mmfl.papers.variance.table1.babble", "model": CHARACTERS, "lr": 1.0},
}
small = [f"tasks.{task}.{key}={value}" for task, values in SMALL.items() for key, value in values.items()]


def quick_form() -> mmfl.Federation:
    return mmfl.preset("lvr-5tasks", settings=["federation.clients=40", *small])


try:
    federation = quick_form() if QUICK else mmfl.preset("lvr-5tasks")
except mmfl.UserError as missing:
    print(f"{missing}\nSo this is the quick form.")
    QUICK, federation = True, quick_form()
print(federation)
federation

# %% [markdown]
# A tenth of the clients lack one of the tasks. In a round, a quarter of the clients can train all their tasks, half of
# the clients half of their tasks, and the rest one.

# %%
print("tasks a client can train in a round:", pd.Series(federation.capacity).value_counts().sort_index().to_dict())
print("examples:", dict(zip(federation.task_names, federation.sizes.sum(0).tolist(), strict=True)))

# %% [markdown]
# ## Training
#
# The server can pay for a tenth of all trainings. The last 20 rounds are all tested, since single rounds are noisy.

# %%
methods = ["random", "mmfl-lvr", "mmfl-stalevre", "full"]
result = mmfl.compare(
    federation,
    methods,
    rounds=10 if QUICK else 150,
    rate=0.1,
    seeds=1 if QUICK else 3,
    evaluate_every=5,
    evaluate_last=20,
)
result

# %% [markdown]
# ## Beside the paper
#
# The paper's table has accuracy relative to full participation. Its numbers are for its data and 150 rounds: the
# quick form shows that everything works, and is no reproduction (`mmfl reproduce table1-5tasks` is).

# %%
table = result.table()[["mean", "worst", "relative", "trainings"]]
table["the paper's relative"] = [PAPER[method][1] for method in table.index]
print(table.round(3).to_string())
table
