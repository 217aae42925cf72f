"""The tasks of Bhuyan, Moharir & Joshi 2022: two Synthetic(1,1) sets, and attributes of faces."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from mmfl.data import Dataset
from mmfl.data import faces as generated_faces
from mmfl.data.files import folder_of
from mmfl.federation import Federation
from mmfl.federation.task import Task
from mmfl.models import LogisticRegression, SmallCNN
from mmfl.papers.reproduction import federations
from mmfl.partition import Split, owners
from mmfl.randomness import Purpose, generator

CAP = 400
"""The most examples of a client in the Synthetic sets: the largest client determines the time of a round."""

ATTRIBUTES = (
    "Eyeglasses", "Bald", "Goatee", "Wearing_Necklace", "Smiling", "Mustache", "Male", "Wearing_Lipstick",
    "Double_Chin",
)  # fmt: skip
"""The attributes of the paper's Table 5, by their names in CelebA."""


def synthetic(number: int, clients: int, cap: int = CAP) -> Task:
    """Synthetic(1,1)-A (0) or -B (1)."""
    sizes = [f"tasks.{n}.data.{key}={value}" for n in (0, 1) for key, value in (("clients", clients), ("cap", cap))]
    return federations("mfa-synthetic", [f"federation.clients={clients}", *sizes])(0).tasks[number]


def small_synthetic(number: int, clients: int) -> Task:
    """The same with little data: what a quick form trains."""
    return replace(synthetic(number, clients, cap=100), lr=0.01)


def faces() -> Sequence[Task]:
    """Nine attributes of 96 people: from CelebA if the data folder has it, otherwise from generated faces."""
    return federations("mfa-faces", celeba_settings() if folder_of("celeba").is_dir() else ())(0).tasks


def face() -> Task:
    """Eyeglasses, of the nine attributes."""
    return next(task for task in faces() if task.name == "eyeglasses")


def celeba_settings() -> list[str]:
    """Settings that replace generated faces by CelebA, with LEAF's network and its minimum number of pictures."""
    lines: list[str] = []
    for n, attribute in enumerate(ATTRIBUTES):
        data = f'{{name="celeba", attribute="{attribute}", least=5}}'
        lines += [f"tasks.{n}.name={name(attribute)}", f"tasks.{n}.data={data}", f"tasks.{n}.model=celeba-cnn"]
    return lines


def small_face(attribute: str) -> Task:
    """An attribute of 24 people in small generated pictures, for a linear model: what a quick form trains."""
    model = partial(LogisticRegression, inputs=3 * 12 * 12, classes=2)
    pictures = generated_faces(attribute, people=24, images=40, side=12)
    return Task(name(attribute), model, pictures, lr=0.02, batch_size=8)


def small_network(attribute: str) -> Task:
    """An attribute of 16 people in small generated pictures, for a convolutional network."""
    model = partial(SmallCNN, side=12, channels=3, classes=2, widths=(8, 16), hidden=32, padding=1)
    pictures = generated_faces(attribute, people=16, images=20, side=12)
    return Task(name(attribute), model, pictures, lr=0.2, epochs=5, batch_size=10)


def name(attribute: str) -> str:
    """The name of a task.

    >>> name("Wearing_Hat")
    'wearing-hat'
    """
    return attribute.lower().replace("_", "-")


def copies(task: Task, number: int) -> list[Task]:
    """Tasks that differ in name only."""
    return [replace(task, name=f"{task.name} {n}") for n in range(1, number + 1)]


def with_training_examples_as_test(task: Task) -> Task:
    """The same task, tested on its training examples. Randomness is addressed, so it trains to the same weights."""
    data = task.data
    rows = None if data.rows is None else (data.rows[0], data.rows[0])
    return replace(task, data=replace(data, x_test=data.x, y_test=data.y, owner_test=data.owner, rows=rows))


def with_shared_clients(tasks: Sequence[Task], clients: int) -> Callable[[int], Federation]:
    """The federation of these tasks as a function of the seed; a client is the same owner in all tasks with owners."""

    def federation(seed: int) -> Federation:
        def partition(dataset: Dataset, clients: int, rng: np.random.Generator) -> Split:
            return owners()(dataset, clients, generator(seed, Purpose.PARTITION))

        return Federation(tasks, clients, partition=partition, seed=seed)

    return federation
