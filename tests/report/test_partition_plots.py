"""Pictures of who holds what: they show the numbers of the federation, however many clients it has."""

from functools import partial

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib import pyplot

from conftest import refusals, refused, toy_task
from mmfl import Federation, Task, models, partition
from mmfl.data import Dataset
from mmfl.report import partition_plots

mpl.use("agg")


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    pyplot.close("all")


def federation(clients=6, rule=None, **options) -> Federation:
    return Federation([toy_task("red"), toy_task("blue/green", classes=3)], clients, partition=rule, **options)


def task_of(rows, classes, name="many") -> Task:
    x, y = torch.zeros(rows, 2), torch.arange(rows) % classes
    model = partial(models.LogisticRegression, inputs=2, classes=classes)
    return Task(name, model, Dataset(name, x, y, x[:1], y[:1]))


def image_of(figure):
    """What the heat map of a figure shows, with 0 where it is white."""
    return next(np.ma.filled(axes.images[0].get_array(), 0) for axes in figure.axes if axes.images)


def test_every_figure_is_written_as_png_under_a_plain_name(tmp_path):
    paths = partition_plots.draw(federation(), tmp_path / "figures")
    assert [path.name for path in paths] == ["volumes.png", "labels-1-red.png", "labels-2-blue-green.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
    assert not pyplot.get_fignums()


def test_the_label_map_shows_each_clients_label_distribution():
    made = federation(8, partition.labels(0.5, 4))
    shown = image_of(partition_plots.draw_labels(made, "red"))
    label = made.tasks[0].data.y.numpy()
    expected = [np.bincount(label[made.shards[0].of(i)], minlength=4) / 4 for i in range(8)]
    assert sorted(shown.tolist()) == sorted(row.tolist() for row in expected)


def test_clients_of_a_cluster_are_neighbours_in_the_label_map():
    made = Federation([task_of(9000, 10)], 30, partition=partition.clusters(5, sizes=partition.uniform(30, 40)))
    held = image_of(partition_plots.draw_labels(made, "many")) > 0
    assert (held[1:] != held[:-1]).any(1).sum() == 4


def test_clients_without_the_task_are_left_out():
    made = federation(10, lacks=0.5)
    for task, volumes in zip(made.tasks, made.sizes.T, strict=True):
        shown = image_of(partition_plots.draw_labels(made, task.name))
        assert len(shown) == (volumes > 0).sum() < 10
        assert np.allclose(shown.sum(1), 1)


def test_the_volume_map_shows_the_sizes_with_the_richest_first():
    made = federation(12, partition.iid(partition.uniform(1, 4)), lacks=0.5)
    shown = image_of(partition_plots.draw_volumes(made))
    assert sorted(shown.tolist()) == sorted(made.sizes.tolist())
    assert (np.diff(shown.sum(1)) <= 0).all()


def test_the_curves_say_what_the_richest_tenth_holds():
    made = Federation([task_of(2000, 10)], 20, partition=partition.iid(partition.high_low(0.1, (90, 90), (10, 10))))
    figure = partition_plots.draw_volumes(made)
    texts = [text.get_text() for axes in figure.axes if axes.get_legend() for text in axes.get_legend().get_texts()]
    assert texts == ["many: a tenth holds 50%"]


@pytest.mark.parametrize("clients", [250, 251, 3000])
def test_many_clients_share_rows_that_are_their_means(clients):
    made = Federation([task_of(20_000, 10)], clients, partition=partition.dirichlet(0.3, partition.uniform(1, 6)))
    shown = image_of(partition_plots.draw_labels(made, "many"))
    assert len(shown) == 250
    assert np.allclose(shown.sum(1), 1)
    assert len(image_of(partition_plots.draw_volumes(made))) == 250


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (1, 3), (5, 1), (20, 80)])
def test_the_smallest_and_the_widest_tables_can_be_drawn(tmp_path, clients, classes):
    assert len(partition_plots.draw(Federation([task_of(160, classes)], clients), tmp_path)) == 2


def test_every_character_of_a_text_counts_as_a_label():
    x, y = torch.zeros(6, 2), torch.tensor([[0, 1, 1]] * 3 + [[2, 2, 2]] * 3)
    text = Dataset("text", x, y, x[:1], y[:1], np.array([0, 0, 0, 1, 1, 1]))
    flat = partial(models.LogisticRegression, inputs=2, classes=3)
    made = Federation([Task("text", flat, text, loss=positions, metric=positions)])
    assert np.allclose(image_of(partition_plots.draw_labels(made, "text")), [[1 / 3, 2 / 3, 0], [0, 0, 1]])


def positions(outputs, targets):
    return outputs.sum(1) + targets.float().mean(1)


def test_a_task_without_classes_has_volumes_only(tmp_path):
    assert [path.name for path in partition_plots.draw(real(), tmp_path)] == ["volumes.png"]


def squares(outputs, targets):
    return (outputs**2).sum(1)


@refusals(
    (lambda: partition_plots.draw_labels(federation(), "rod"), "unknown task 'rod'", "did you mean 'red'"),
    (lambda: partition_plots.draw_labels(real(), "real"), "task 'real'", "not class numbers"),
)
def test_labels_that_are_not_there_are_not_drawn(make, words):
    with refused(*words):
        make()


def real() -> Federation:
    x = torch.ones(6, 2)
    values = Dataset("real", x, x, x[:1], x[:1])
    model = partial(models.LogisticRegression, inputs=2, classes=2)
    return Federation([Task("real", model, values, loss=squares, metric=squares)], 2)
