# %% [markdown]
# # A text model and a table, with two inputs and a metric for every client
#
# Some thirty modules of Python's standard library play the clients. Each has text, the docstrings of its functions,
# and a table, a row for each function. Two models learn from all of them at the same time, while every module keeps its
# source: one writes docstrings character by character, the other guesses from a function's signature how long it is.
#
# Run it as a script (`python examples/text_and_table.py`, `--quick` for a short form) or cell by cell.

# %%
import ast
import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import mmfl

QUICK = "--quick" in sys.argv or "MMFL_QUICK" in os.environ
ROUNDS, WINDOWS = (4, 8) if QUICK else (40, 60)
MODULES = """
argparse ast calendar codecs configparser csv datetime decimal difflib doctest enum fractions ftplib gettext gzip
imaplib inspect ipaddress mailbox optparse pathlib pdb pickle pydoc shutil smtplib statistics tarfile textwrap
threading traceback turtle typing uuid zipfile
"""


# %% [markdown]
# ## The data of a client
#
# Nothing here is downloaded: the functions of a module come from its source.


# %%
def functions(name: str) -> list[ast.FunctionDef]:
    """All functions and methods of a module; none if this Python does not have its source."""
    spec = importlib.util.find_spec(name)
    if spec is None or not str(spec.origin).endswith(".py"):
        return []
    tree = ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


SOURCES = {name: found for name in MODULES.split() if len(found := functions(name)) >= 10}
print(len(SOURCES), "clients with", sum(map(len, SOURCES.values())), "functions")

# %% [markdown]
# **Text.** Docstrings are cut into windows of 48 characters. The last window of a docstring is shorter, and filled up:
# where the target is -100, neither loss nor metric counts it. Owners are names, by which both tasks find their clients.

# %%
WINDOW = 48


def text() -> mmfl.data.Dataset:
    """Characters and the characters that follow them, [windows, 48]."""
    rows, owner = [], []
    for name, found in SOURCES.items():
        docstrings = [text for node in found if (text := ast.get_docstring(node))]
        windows = [text[n : n + WINDOW + 1] for text in docstrings for n in range(0, len(text) - 8, WINDOW)][:WINDOWS]
        rows += windows
        owner += [name] * len(windows)
    codes = np.full((len(rows), WINDOW + 1), -100)
    for row, window in zip(codes, rows, strict=True):
        row[: len(window)] = [min(ord(c) - 31, 96) if c >= " " else 0 for c in window]
    return mmfl.data.from_arrays(np.maximum(codes[:, :-1], 0), codes[:, 1:], owner, name="docstrings")


# %% [markdown]
# **Table.** A row has numbers and a category. They are two inputs of the model, given by name.

# %%
KINDS = ["function", "method", "special", "private"]


def kind(node: ast.FunctionDef) -> int:
    """Which of `KINDS` a function is."""
    if node.name.startswith("__"):
        return 2
    if node.name.startswith("_"):
        return 3
    return int(bool(node.args.args) and node.args.args[0].arg in ("self", "cls"))


def numbers(node: ast.FunctionDef) -> list[float]:
    """What a signature says in numbers."""
    given, docstring = node.args, ast.get_docstring(node) or ""
    counts = [len(given.args), len(given.defaults), len(given.kwonlyargs), len(node.decorator_list), len(node.name)]
    return [*counts, given.vararg is not None, given.kwarg is not None, len(docstring) / 40]


def table() -> mmfl.data.Dataset:
    """Signatures, and the logarithm of the number of lines."""
    owner = [name for name, found in SOURCES.items() for _ in found]
    nodes = [node for found in SOURCES.values() for node in found]
    inputs = {
        "numbers": np.log1p(np.array([numbers(node) for node in nodes], dtype=np.float32)),
        "kind": np.array([kind(node) for node in nodes]),
    }
    lines = np.array([(node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes])
    return mmfl.data.from_arrays(inputs, np.log2(lines).astype(np.float32), owner, name="functions")


# %% [markdown]
# ## Two models


# %%
class Writer(nn.Module):
    """The next character, by a gated recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(97, 16), nn.GRU(16, 64, batch_first=True)
        self.output = nn.Linear(64, 97)

    def forward(self, characters: Tensor) -> Tensor:
        """Scores of every character at every place."""
        return self.output(self.recurrent(self.embedding(characters))[0])


class Lines(nn.Module):
    """How long a function is, from the numbers of its signature and its kind."""

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Embedding(len(KINDS), 4)
        self.layers = nn.Sequential(nn.Linear(8 + 4, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, numbers: Tensor, kind: Tensor) -> Tensor:
        """One number per function."""
        return self.layers(torch.cat([numbers, self.kind(kind)], dim=1)).squeeze(1)


tasks = [
    mmfl.Task(
        "docstrings",
        Writer,
        text(),
        lr=0.01,
        optimiser=mmfl.optimisers.Adam(clip_norm=1.0),
        batch_size=8,
        loss=mmfl.objectives.next_token,
        metrics=["perplexity", mmfl.metrics.TopK(5)],
    ),
    mmfl.Task(
        "lines",
        Lines,
        table(),
        lr=0.01,
        optimiser=mmfl.optimisers.SGD(momentum=0.9),
        epochs=2,
        batch_size=16,
        loss=mmfl.objectives.squared_error,
        metric="absolute_error",
        metrics=["rmse"],
    ),
]

# %% [markdown]
# ## Training
#
# A module has as many functions as it has, and trains one of the two models in a round.

# %%
federation = mmfl.Federation(tasks, seed=0)
print("clients:", ", ".join(map(str, federation.client_names[:6])), "...")
result = mmfl.compare(federation, ["random", "mmfl-lvr"], rounds=ROUNDS, rate=0.3, evaluate_every=2)
print(result.metrics().round(3).T.to_string())

# %% [markdown]
# ## Who is served well, and who is not?
#
# Test examples belong to clients, so each client has a metric of its own: how it is distributed over clients, and which
# modules are hardest.

# %%
print(result.clients()[["mean", "worst_tenth", "deviation", "fairness"]].round(3).to_string())
run = result.of("mmfl-lvr")[0]
hardest = run.client_metric("lines").nlargest(3, "value")
hardest.index = federation.client_names[hardest.index]
print(hardest.round(2).to_string())

# %% [markdown]
# ## Using a model

# %%
writer, code = run.module("docstrings"), [ord(c) - 31 for c in "Return the "]
with torch.no_grad():
    for _ in range(30):
        code.append(int(writer(torch.tensor([code]))[0, -1].argmax()))
print(repr("".join(chr(c + 31) if c else " " for c in code)))
