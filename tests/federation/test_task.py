"""One model to train: how it is built, and the mistakes that show before training."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import mmfl
from conftest import refusals, refused, toy_task
from mmfl.data import from_arrays
from mmfl.errors import UserError
from mmfl.federation import objectives


def flat(module: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(module.parameters())


def network(*layers: nn.Module):
    """A model function for inputs of three numbers and four classes, with `layers` in between."""
    return lambda: nn.Sequential(nn.Linear(3, 5), *layers, nn.Linear(5, 4))


def relabelled(row: int, label: int, part: str = "train"):
    """The toy data with one wrong label."""
    x, y = np.zeros((20, 3)), np.arange(20) % 4
    wrong = y.copy()
    wrong[row] = label
    return from_arrays(x, wrong if part == "train" else y, test=(x, wrong if part == "test" else y))


def test_initial_weights_are_a_function_of_seed_and_task_alone():
    task = toy_task()
    torch.manual_seed(1)
    one = flat(task.build(seed=3, task=1))
    state = torch.get_rng_state()
    again = flat(task.build(seed=3, task=1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one, again)
    assert not torch.equal(one, flat(task.build(seed=4, task=1)))
    assert not torch.equal(one, flat(task.build(seed=3, task=2)))


def test_learning_rate_is_a_number_or_a_function_of_the_round():
    assert [toy_task(lr=0.5).learning_rate(t) for t in (1, 9)] == [0.5, 0.5]
    assert [toy_task(lr=lambda t: 30 / (100 + t)).learning_rate(t) for t in (0, 50)] == [0.3, 0.2]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"model": network(nn.ReLU(), nn.BatchNorm1d(5, track_running_stats=False))},
        {"model": network(nn.ReLU(), nn.BatchNorm1d(5, momentum=None)), "batch_norm": "frozen"},
        {"model": partial(nn.Linear, 3, 1), "loss": objectives.squared_error, "metric": objectives.absolute_error},
        {"loss": nn.CrossEntropyLoss(reduction="none")},
    ],
    ids=["plain", "batch norm", "frozen batch norm", "regression", "torch loss"],
)
def test_a_sound_task_passes(options):
    toy_task(**options).check()


@refusals(
    (lambda: toy_task(""), "name is empty"),
    (lambda: toy_task("mean"), "task 'mean'", "reserved"),
    (lambda: toy_task(lr=0), "'toy'", "lr is 0", "positive"),
    (lambda: toy_task(lr=float("nan")), "'toy'", "lr is nan", "positive"),
    (lambda: toy_task(lr=float("inf")), "'toy'", "lr is inf", "positive"),
    (lambda: toy_task(lr="0.1"), "'toy'", "lr is '0.1'", "positive"),
    (lambda: toy_task(lr=True), "'toy'", "lr is True", "positive"),
    (lambda: toy_task("a\0b"), r"task 'a\x00b'", "control character"),
    (lambda: toy_task("a\u2028b"), "line break"),
    (lambda: toy_task(3), "the name is 3", "text"),
    (lambda: toy_task(model=nn.Linear(3, 4)), "'toy'", "a class or a function", "model=Linear"),
    (lambda: toy_task(model="logistic"), "'toy'", "model is 'logistic'", "a class or a function"),
    (lambda: toy_task(epochs=0), "'toy'", "epochs is 0", "at least 1"),
    (lambda: toy_task(epochs=1.5), "'toy'", "epochs is 1.5"),
    (lambda: toy_task(batch_size=0), "'toy'", "batch_size is 0", "at least 1"),
    (lambda: toy_task(batch_size=2.5), "'toy'", "batch_size is 2.5"),
)
def test_a_training_recipe_that_makes_no_sense_is_refused_at_once(make, words):
    with refused(*words):
        make()


class Counting(nn.Linear):
    """A model that remembers how many examples it has seen."""

    def __init__(self):
        super().__init__(3, 4)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x):
        self.seen += len(x)
        return super().forward(x)


def broken(outputs, targets):
    raise ValueError("out of order\nsecond line")


@refusals(
    (lambda: toy_task(data=relabelled(13, 4)), "'toy'", "label 4 at row 13", "4 outputs", "0 to 3"),
    (lambda: toy_task(data=relabelled(2, -1)), "'toy'", "label -1 at row 2"),
    (lambda: toy_task(data=relabelled(6, 9, "test")), "'toy'", "test label 9 at row 6"),
    (lambda: toy_task(model=partial(nn.Linear, 3, 2)), "'toy'", "label 2 at row", "2 outputs", "0 to 1"),
    (lambda: toy_task(model=partial(nn.Linear, 5, 4)), "'toy'", "the model fails", "(2, 3)"),
    (lambda: toy_task(model=nn.Identity), "'toy'", "no parameters"),
    (lambda: toy_task(model=lambda: nn.Linear(3, 4).requires_grad_(False)), "'toy'", "no parameters"),
    (lambda: toy_task(model=network(nn.BatchNorm1d(5, momentum=None))), "'toy'", "'1'", "momentum None", "'frozen'"),
    (lambda: toy_task(batch_norm="locl"), "'toy'", "unknown batch_norm 'locl'", "local"),
    *(
        (partial(toy_task, priority=bad), "'toy'", f"priority is {bad!r}", "a positive number")
        for bad in (0, -1.0, float("nan"), float("inf"), 1e-7, 1e7, "high", True, None)
    ),
    (lambda: toy_task(model=lambda: nn.Linear(3, 4).double()), "'toy'", "parameter 'weight' is float64", "float32"),
    (lambda: toy_task(model=Counting), "'toy'", "buffer 'seen'", "only the statistics of batch norm"),
    (lambda: toy_task(model=lambda: 3), "'toy'", "returned a int", "torch.nn.Module"),
    (lambda: toy_task(model=network(nn.Unflatten(1, (1, 5)))), "'toy'", "(2, 1, 4)", "[examples, classes]"),
    (lambda: toy_task(model=partial(nn.LSTM, 3, 4)), "'toy'", "the model gives", "outputs[1][0]", "a row for each"),
    (lambda: toy_task(model=lambda: nn.Linear(-3, 4)), "'toy'", "the model cannot be built:", "negative"),
    (lambda: toy_task(model=nn.Linear), "'toy'", "the model", "in_features"),
    (lambda: toy_task(data=from_arrays(np.zeros((9, 3)), np.zeros(9))), "'toy'", "not class", "squared_error"),
    (lambda: toy_task(loss=lambda o, t: o.mean()), "'toy'", "the loss gives shape ()", "one value per example"),
    (lambda: toy_task(loss=lambda o, t: 0.5), "'toy'", "the loss", "one value per example"),
    (lambda: toy_task(metric=lambda o, t: o.mean()), "'toy'", "the metric gives shape ()"),
    (lambda: toy_task(loss=lambda o, t: o.T.flatten()[:3]), "'toy'", "the loss gives shape (3,)", "2 examples"),
    (lambda: toy_task(loss=broken), "'toy'", "the loss fails", "(2, 4)", "(2,)", "out of order"),
    (lambda: toy_task(metric=broken), "'toy'", "the metric fails", "out of order"),
    (lambda: toy_task(loss=lambda o, t: o[:, 0] / 0), "'toy'", "the loss is not finite"),
)
def test_a_task_that_cannot_train_is_refused_by_name(make, words):
    with refused(*words):
        make().check()


# --- values of single examples -------------------------------------------------------


def regression(targets=(), rows=12, outputs=1, **options):
    """A task of real numbers: outputs [n, outputs] and targets [n, *targets]."""
    rng = np.random.default_rng(0)
    made = from_arrays(rng.normal(size=(rows, 3)), rng.normal(size=(rows, *targets)), test_share=0.5)
    own = {"loss": objectives.squared_error, "metric": objectives.absolute_error}
    return toy_task(data=made, **({"model": partial(nn.Linear, 3, outputs)} | own | options))


def difference(outputs, targets):
    return (outputs - targets) ** 2


def centred(outputs, targets):
    """Depends on the other examples of the batch, in the shape of one that does not."""
    return ((outputs - outputs.mean(0)) - targets) ** 2


@refusals(
    (lambda: regression(loss=difference), "the loss gives shape (2, 2)", "outputs (2, 1) and targets (2,)", "[n, 1]"),
    (lambda: regression(metric=difference), "the metric gives shape (2, 2)", "outputs.squeeze(1)"),
    (lambda: regression(rows=2, loss=difference), "the loss gives shape (2, 2)"),
    (lambda: regression(outputs=2, loss=difference, metric=difference), "the loss fails", "(3, 2) and targets (3,)"),
    (lambda: regression((1,), loss=lambda o, y: difference(o[:, 0], y)), "the loss gives shape (2, 2)", "(2, 1)"),
    (lambda: regression((1,), loss=centred), "the loss of an example changes with the other examples"),
    (lambda: regression((1,), metric=centred), "the metric of an example changes with the other examples"),
    (lambda: regression((4,), outputs=4, loss=lambda o, y: difference(o, y.flip(0))), "the loss of an example"),
    (lambda: regression(metric=objectives.accuracy, model=Single), "the metric fails", "(2,)", "absolute_error"),
    (lambda: regression((1,), metric=objectives.accuracy), "the metric fails", "(2, 1)", "absolute_error"),
    (lambda: regression(loss=lambda o, y: difference(o.squeeze(), y.squeeze())), "gives shape () for 1 example;"),
)
def test_a_loss_or_metric_that_mixes_examples_is_refused(make, words):
    with refused(*words):
        make().check()


class Single(nn.Linear):
    """A model that gives one number for each example, of shape [n]; at first all of them are 0."""

    def __init__(self):
        super().__init__(3, 1)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x):
        return super().forward(x)[:, 0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"targets": (1,), "loss": difference, "metric": difference},
        {"model": Single, "loss": difference},
        {"targets": (2,), "outputs": 2, "loss": difference},
        {"targets": (3,), "outputs": 3, "loss": difference, "rows": 3},
        {"model": Single, "targets": (1,)},
        {"rows": 2, "targets": (1,), "loss": difference},
    ],
)
def test_values_for_each_example_or_each_position_of_it_pass(options):
    regression(**options).check()


def test_batch_statistics_of_a_model_are_not_taken_for_a_loss_that_mixes_examples():
    norm = nn.BatchNorm1d(3, track_running_stats=False)
    regression(model=lambda: nn.Sequential(norm, nn.Linear(3, 1))).check()


@pytest.mark.parametrize("error", [objectives.squared_error, objectives.absolute_error])
def test_built_in_errors_compare_targets_of_the_same_numbers_and_refuse_other_orders(error):
    numbers = torch.arange(24.0).reshape(4, 2, 3)
    assert (error(numbers, numbers.flatten(1)) == 0).all()
    assert (error(numbers.flatten(1), numbers) == 0).all()
    assert error(numbers[:, 0, :1], numbers[:, 0, 0]).shape == (4, 1)
    with pytest.raises(ValueError, match=r"\(4, 3, 2\).*\(4, 2, 3\)"):
        error(numbers, numbers.transpose(1, 2))


def test_a_wrong_label_is_named_by_the_row_that_the_user_gave():
    y = np.arange(40) % 4
    y[31] = 7
    for seed in range(6):  # the row is among those for training in some, for testing in others
        with refused("label 7 at row 31, but"):
            toy_task(data=from_arrays(np.zeros((40, 3)), y, test_share=0.5, seed=seed)).check()


def test_a_refusal_quotes_only_the_first_line_of_the_error_behind_it():
    with pytest.raises(UserError, match=r"out of order$"):
        toy_task(loss=broken).check()


@refusals(
    (lambda: toy_task(data=(torch.zeros(4, 3), torch.zeros(4))), "'toy'", "data is (tensor(", "from_arrays"),
    (lambda: toy_task(loss="squared_error"), "task 'toy': loss is 'squared_error'; expected a function of (outputs,"),
    (lambda: toy_task(optimiser=torch.optim.Adam([torch.zeros(1)])), "optimiser is Adam ( Parameter Group 0"),
    (lambda: mmfl.Federation(toy_task()), "federation: tasks is Task(", "a list of tasks"),
    (lambda: mmfl.Federation([toy_task(data=labelled((12, 1)))], 2), "shape (12, 1)", "expected [examples]: y[:, 0]."),
    (lambda: mmfl.Federation([toy_task(data=labelled((12, 4)))], 2), "shape (12, 4)", "y.argmax(1)"),
    (lambda: mmfl.train(mmfl.Federation([toy_task()], 2), stop={"target": 1}), "stop is {'target': 1}", "mmfl.Stop"),
)
def test_a_slip_is_named_in_one_line(make, words):
    with refused(*words):
        make()


def labelled(shape: tuple[int, ...]) -> mmfl.data.Dataset:
    """Twelve examples with whole numbers of this shape as targets."""
    y = np.zeros(shape, dtype=int)
    return mmfl.data.from_arrays(np.zeros((len(y), 3)), y, test=(np.zeros((2, 3)), y[:2]))


def test_a_data_set_says_what_it_holds_without_its_numbers():
    data = mmfl.data.from_arrays(np.zeros((10, 3)), np.arange(10) % 2, owner=["ann", "bob"] * 5)
    assert repr(data) == "Dataset('data', 8 + 2 examples, 2 owners, inputs (3,), targets ())"
