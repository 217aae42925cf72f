"""Models, losses and metrics of a user's own that fail: one line with the task and the place, never a traceback."""

import numpy as np
import pytest
import torch
from torch import nn

import mmfl
from conftest import refused
from prompt import mmfl as command

CLIENTS = 5
MODES = ("auto", "vectorised", "sequential")


def tokens(row: int, test: bool = False) -> mmfl.data.Dataset:
    """Sentences of five tokens below 50, but for one token in a row."""
    rng = np.random.default_rng(0)
    x, x_test = (torch.from_numpy(rng.integers(0, 50, (size, 5))) for size in (200, 100))
    (x_test if test else x)[row, 2] = 50
    return mmfl.data.from_arrays(x, (x[:, 0] > 25).long(), test=(x_test, (x_test[:, 0] > 25).long()))


class Sentences(nn.Module):
    """A vocabulary of fifty tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(50, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.words(x).mean(1))


def train(model=mmfl.models.LogisticRegression, data=None, method="full", engine="auto", **options) -> mmfl.Run:
    task = mmfl.Task("mine", model, data or mmfl.data.digits(), **options)
    return mmfl.train(mmfl.Federation([task], CLIENTS), method, 1, 1.0, engine=engine, device="cpu")


@pytest.mark.parametrize("engine", MODES)
def test_a_token_beyond_the_vocabulary_is_named_with_client_round_and_step(engine):
    with refused("task 'mine': training fails (client ", "round 1, local step 1): index out of range"):
        train(Sentences, tokens(70), engine=engine)


@pytest.mark.parametrize(
    ("row", "test", "method", "words"),
    [
        (70, False, "mmfl-lvr", "task 'mine': model or loss fails on the clients' examples: index out of range"),
        (70, True, "full", "task 'mine': model or loss fails on the test examples: index out of range"),
        (199, False, "full", "task 'mine': the model fails on examples of its data: index out of range"),
    ],
)
def test_a_token_beyond_the_vocabulary_is_found_wherever_examples_are_read(row, test, method, words):
    with refused(words):
        train(Sentences, tokens(row, test), method)


class Refuses(torch.autograd.Function):
    """The identity, whose backward pass fails for more than two examples (the check has two), or always."""

    @staticmethod
    def forward(ctx, x, always):
        ctx.fails = always or len(x) > 2
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.fails:
            raise ValueError("no way back")
        return gradient, None


class NoWayBack(mmfl.models.LogisticRegression):
    """Fails in the backward pass."""

    always = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Refuses.apply(super().forward(x), self.always)


class SometimesNoWayBack(NoWayBack):
    """Fails in the backward pass of more than two examples."""

    always = False


class Constant(mmfl.models.LogisticRegression):
    """Its outputs have no gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach()


@pytest.mark.parametrize("engine", MODES)
def test_a_backward_pass_that_fails_is_named(engine):
    with refused("task 'mine': the backward pass of model and loss fails: no way back"):
        train(NoWayBack, engine=engine)
    with refused("task 'mine': training fails (client 0, round 1, local step 1): no way back"):
        train(SometimesNoWayBack, engine=engine)


def test_outputs_without_a_gradient_are_refused_before_training():
    with refused("task 'mine': the loss does not depend on the parameters that are trained", "detach()"):
        train(Constant)


# --- metrics ---


def owned() -> mmfl.data.Dataset:
    """Digits of writers, of whom the third has three test examples and the others two."""
    digits = mmfl.data.digits()
    train_owner = [f"writer-{n % 4}" for n in range(200)]
    test_owner = ["writer-0", "writer-1", "writer-2", "writer-3", "writer-2"] + [f"writer-{n}" for n in (0, 1, 2, 3)]
    test = (digits.x_test[:9], digits.y_test[:9], test_owner)
    return mmfl.data.from_arrays(digits.x[:200], digits.y[:200], train_owner, test=test)


class OnlyPairs(mmfl.metrics.CollectedMetric):
    """Cannot be computed of three examples."""

    name = "pairs"

    def start(self):
        return self

    def __init__(self):
        self.seen = 0

    def update(self, outputs, targets):
        self.seen += len(targets)

    def compute(self):
        if self.seen == 3:
            raise KeyError("three")
        return torch.tensor(1.0)


class Pairs(OnlyPairs):
    """A meter for each client."""

    def start(self):
        return OnlyPairs()


class Sums(mmfl.metrics.AdditiveMetric):
    """Cannot be computed of three examples either."""

    name = "sums"

    def statistics(self, outputs, targets):
        return torch.ones(len(targets), 2)

    def value(self, sums):
        if (sums == 3).any():
            raise ZeroDivisionError("three")
        return sums[..., 0]


class OfOneClient(Sums):
    """Forgets that sums may be those of several clients."""

    def value(self, sums):
        return sums[0] / sums[1]


class NeverWhole(Sums):
    """Cannot be computed of all examples."""

    def value(self, sums):
        if (sums == 100).any():
            raise ValueError("a hundred")
        return sums[..., 0]


@pytest.mark.parametrize("metric", [Pairs(), Sums()], ids=["collected", "additive"])
def test_a_metric_that_fails_for_one_client_names_the_client(metric):
    task = mmfl.Task("mine", mmfl.models.LogisticRegression, owned(), metric=metric)
    with refused("task 'mine': metric", "fails on the test examples of client 2 ('writer-2')", "three"):
        mmfl.train(mmfl.Federation([task]), "full", 1, device="cpu")


def test_a_metric_that_is_computed_of_one_client_where_there_are_several_is_refused():
    task = mmfl.Task("mine", mmfl.models.LogisticRegression, owned(), metric=OfOneClient())
    with refused("task 'mine': metric 'sums' gives shape (2,) for 4 clients; expected (4,), one value each"):
        mmfl.train(mmfl.Federation([task]), "full", 1, device="cpu")


def test_a_metric_that_fails_on_the_whole_test_set_is_named():
    digits = mmfl.data.digits()
    data = mmfl.data.from_arrays(digits.x, digits.y, test=(digits.x_test[:100], digits.y_test[:100]))
    with refused("task 'mine': metric 'sums' fails on the test examples: a hundred"):
        train(data=data, metric=NeverWhole())


FILE = """
import torch
import mmfl


class Constant(mmfl.models.LogisticRegression):
    def forward(self, x):
        return super().forward(x).detach()
"""


def test_the_command_line_says_so_in_a_line(tmp_path):
    (tmp_path / "my_models.py").write_text(FILE)
    (tmp_path / "try.toml").write_text(
        '[federation]\nclients = 4\n[[tasks]]\nname = "mine"\ndata = "digits"\nmodel = "my_models.Constant"\n'
    )
    done = command("run", "try.toml", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: task 'mine': the loss does not depend on the parameters that are trained")
    assert len(done.stderr.splitlines()) == 1
