"""The page of what is supported: every row is tried here, or where it says."""

import re
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import mmfl
from conftest import refused, toy_task
from mmfl.engine import Simulation
from pages import ROOT

PAGE = ROOT / "docs/supported.md"
KINDS = "tests/engine/test_agreement.py"  # every kind of module, in cohorts and alone
TASKS = "tests/test_real_tasks.py"  # every method with every kind of task


def rows() -> Iterator[tuple[str, str]]:
    """What, and whether it is supported."""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[1] in ("yes", "no", "refused"):
            yield cells[0], cells[1]


def network(*parts: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), *parts)


def train(**options) -> mmfl.Run:
    return mmfl.train(mmfl.Federation([toy_task(**options)], 3), "full", rounds=1, device="cpu")


class Draws(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(len(x), 1)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.output = nn.GRU(1, 4, batch_first=True), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.full((len(x),), 3)
        packed = nn.utils.rnn.pack_padded_sequence(x[:, :, None], lengths, batch_first=True)
        return self.output(self.layer(packed)[1][0])


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.layer(x)


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        yield torch.zeros(3), 0


def frozen() -> nn.Module:
    return network().requires_grad_(False)


def share_base() -> None:
    base = nn.Linear(3, 4)
    trains = toy_task("one", model=lambda: nn.Sequential(base))
    freezes = toy_task("two", model=lambda: nn.Sequential(base.requires_grad_(False), nn.Linear(4, 4)))
    mmfl.train(mmfl.Federation([trains, freezes], 3), "full", rounds=1)


def half() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4).half())


def pairwise(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs @ outputs.T).sum(1) + targets


def ragged() -> mmfl.data.Dataset:
    class Items(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.zeros(3 + index % 2), 0

    return mmfl.data.from_torch_dataset(Items())


REFUSED: dict[str, tuple[Callable[[], object], list[str]]] = {
    "batch norm with `momentum=None`": (
        lambda: train(model=lambda: network(nn.BatchNorm1d(4, momentum=None))),
        ["momentum None"],
    ),
    "other buffers that training changes": (lambda: train(model=Counts), ["buffer 'seen'"]),
    "trained parameters in half precision": (lambda: train(model=half), ["float16", "expected float32"]),
    "a model without trained parameters": (lambda: train(model=frozen), ["no parameters to train"]),
    "a base that one task trains and another freezes": (share_base, ["'0.weight'", "freeze a copy"]),
    "a module in place of a function that makes one": (lambda: train(model=network()), ["instance of Sequential"]),
    "objects of `torch.optim`": (lambda: train(optimiser=torch.optim.Adam), ["optimiser is", "mmfl.optimisers"]),
    "examples with different structures or lengths": (ragged, ["row 1 has shape (4,)", "the same"]),
    "streams without a length": (lambda: mmfl.data.from_torch_dataset(Stream()), ["Stream"]),
    "losses between examples of a batch (contrastive, ranking of pairs)": (
        lambda: train(loss=pairwise),
        ["loss of an example changes with the other examples"],
    ),
}
SUPPORTED: dict[str, Callable[[], object] | str] = {
    "any `nn.Module` whose trained parameters are float32": KINDS,
    "frozen parameters, of any precision": "tests/engine/test_frozen.py",
    "low-rank adapters, `peft` and `transformers` modules": "tests/models/test_lora.py",
    "batch norm": "tests/engine/test_batch_norm.py",
    "dropout, also of attention and between recurrent layers": "tests/engine/test_dropout.py",
    "LSTMs, GRUs, plain recurrent networks, transformers": KINDS,
    "packed sequences (`pack_padded_sequence`)": lambda: train(model=Packed),
    "several outputs, inputs by name": TASKS,
    "random numbers of the module's own (`torch.rand` in `forward`)": lambda: train(model=lambda: Draws(3, 4)),
    "SGD with momentum, Nesterov and weight decay, Adam, AdamW": "tests/engine/test_optimisers.py",
    "clipping by norm and by value": "tests/engine/test_optimisers.py",
    "learning rates by round and by local step": "tests/engine/test_optimisers.py",
    "an optimiser's state that stays with the client": "tests/engine/test_optimiser_state.py",
    "proximal terms, control variates, rules of your own": "tests/engine/test_local_rules.py",
    "tensors and arrays, tuples and dictionaries of them": TASKS,
    "data frames of pandas and polars": "tests/data/test_structure.py",
    "arrays in files, data sets of torch read when needed, folders of images": "tests/data/test_lazy.py",
    "padding": TASKS,
    "random crops, flips, noise, functions of your own": "tests/data/test_augmentation.py",
    "any loss with one value per example": KINDS,
    "class weights, label smoothing, several labels, next token, example weights": TASKS,
    "metrics of the whole test set, several per task, for each client": "tests/federation/test_metrics.py",
    "resume after a crash, with the same bits": "tests/test_every_method.py",
    "stop at a target, when nothing improves, after some time": "tests/runs/test_stopping.py",
    "priorities of tasks": "tests/allocation/test_priorities.py",
    "several processes and GPUs": "tests/updates/test_world.py",
    "clients that attack, aggregations that bear them": "tests/federation/test_attacks.py",
    "several federations in one run that differ in settings": "tests/runs/test_sweep.py",
}


def test_every_row_is_tried():
    found = dict(rows())
    assert {what for what, answer in found.items() if answer == "yes"} == set(SUPPORTED)
    assert {what for what, answer in found.items() if answer == "refused"} == set(REFUSED)


@pytest.mark.parametrize("what", REFUSED)
def test_what_the_page_says_to_be_refused_is_refused_before_training(what):
    attempt, words = REFUSED[what]
    with refused(*words):
        attempt()


@pytest.mark.parametrize("what", SUPPORTED)
def test_what_the_page_says_to_work_works_or_has_tests(what):
    proof = SUPPORTED[what]
    if isinstance(proof, str):
        assert re.search(r"^def test_", (ROOT / proof).read_text(), flags=re.MULTILINE)
    else:
        proof()


def test_a_module_with_random_numbers_of_its_own_trains_one_client_after_another():
    task = toy_task(model=partial(Draws, 3, 4))
    assert not Simulation("cpu").architecture(task).vectorisable
    assert np.isfinite(train(model=partial(Draws, 3, 4)).loss).all().all()
