# %% [markdown]
# # Two tasks, one pool of clients
#
# Forty clients hold handwritten digits and points of a made-up problem. Both models are trained at the same time; a
# client with capacity 1 can train one of them in a round. We look at who holds what, compare ways to share the
# clients, and use a trained model.
#
# Run it as a script (`python examples/digits_and_synthetic.py`, `--quick` for a short form) or open it as a notebook:
# editors and Jupytext read the `# %%` marks as cells.

# %%
import os
import sys
import time
from pathlib import Path

import mmfl

QUICK = "--quick" in sys.argv or "MMFL_QUICK" in os.environ
ROUNDS, SEEDS = (8, 2) if QUICK else (80, 3)

# %% [markdown]
# ## Tasks and clients
#
# A task is a model, its data and how a client trains it. The digits are real (1,797 pictures that come with
# scikit-learn); the synthetic data has an owner for every example, who becomes a client.

# %%
digits = mmfl.data.digits()
tasks = [
    mmfl.Task("digits", mmfl.models.Perceptron, digits, lr=0.3, epochs=5),
    mmfl.Task(
        "synthetic",
        lambda: mmfl.models.LogisticRegression(inputs=60),
        mmfl.data.synthetic(0.5, 0.5, clients=40, classes=10, cap=200),
        lr=0.1,
        epochs=5,
        batch_size=50,
    ),
]

# %% [markdown]
# A client has digits of three of the ten labels only, and a few clients have much more than the others.

# %%
few_labels = mmfl.partition.labels(0.3, sizes=mmfl.partition.high_low(high=(80, 120), low=(10, 20)))
federation = mmfl.Federation(tasks, clients=40, partition={"digits": few_labels}, capacity=[1, 1, 2], seed=0)
print("\n".join(f"{label}: {text}" for label, text in federation.describe().items()))
federation

# %% [markdown]
# ## Three ways to share the clients
#
# `rate` is the share of all processors that the server can pay for in a round. `full` ignores it: there every client
# always trains everything and is the reference. All methods and seeds run in lockstep. With a directory, what
# happens is on disk as it happens, and `resume=True` goes on after a crash.

# %%
folder = Path("runs") / time.strftime("%Y%m%d-%H%M%S-digits-and-synthetic")
result = mmfl.compare(
    federation,
    ["random", "mmfl-lvr", "mmfl-stalevre", "full"],
    rounds=ROUNDS,
    rate=0.15,
    seeds=SEEDS,
    directory=folder,
)
print(result.table().round(3).to_string())
result

# %% [markdown]
# ## What happened
#
# A run has data frames of everything that was recorded. How good was each task along the way, how often did clients
# train it, and what did a round cost?

# %%
run = result.of("mmfl-lvr")[0]
print(run.accuracy.tail(3).round(3).to_string())
print("trainings by task:", run.participation.sum().to_dict())
print("cost of a round:", run.costs.mean().round(1).to_dict())
run

# %%
result.plot(folder / "comparison.png")
print("drawn in", folder / "comparison.png")

# %% [markdown]
# ## The trained model
#
# `run.module(task)` is an ordinary `nn.Module`.

# %%
model = run.module("digits")
guesses = model(digits.x_test[:10]).argmax(1)
print("guessed", guesses.tolist(), "of", digits.y_test[:10].tolist())

# %% [markdown]
# A directory gives the runs back later, without their weights.

# %%
again = mmfl.load(folder)
assert again.table().equals(result.table())
again
