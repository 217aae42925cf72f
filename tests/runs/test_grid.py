"""Grids: how they are read, what is refused, and what points are called."""

import pytest

from conftest import refused
from mmfl.runs.grid import check_grid, check_size, label_of, points, read_grid


def test_values_are_read_as_after_set_and_commas_in_brackets_or_quotes_belong_to_them():
    grid = read_grid(['federation.capacity=1, [1, 2],"a, b",mixed', 'lr={name="decay", beta=30},0.5', "diagnose=true"])
    assert grid == {
        "federation.capacity": [1, [1, 2], "a, b", "mixed"],
        "lr": [{"name": "decay", "beta": 30}, 0.5],
        "diagnose": [True],
    }


def test_every_combination_is_a_point_and_the_last_key_changes_fastest():
    assert [tuple(point.values()) for point in points({"a": [1, 2], "b": ["x", "y"]})] == [
        *((1, "x"), (1, "y")),
        *((2, "x"), (2, "y")),
    ]


def test_labels_have_as_much_of_a_key_as_tells_it_from_others():
    assert label_of("random", {"tasks.a.lr": 0.1, "rate": 0.5}) == "random (lr=0.1, rate=0.5)"
    assert label_of("random", {"tasks.a.lr": 0.1, "tasks.b.lr": 1}) == "random (a.lr=0.1, b.lr=1)"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ([], ["the grid is empty"]),
        (["rate"], ["--grid rate: expected key=value,value"]),
        (["=0.1"], ["--grid =0.1: expected key=value,value"]),
        (["rate="], ["no values for 'rate'"]),
        (["rate=0.1,,0.2"], ["--grid rate=0.1,,0.2: a value is empty"]),
        (["rate=0.1,"], ["--grid rate=0.1,: a value is empty"]),
        (["rate=0.1", "rate=0.2"], ["'rate' is given twice"]),
        (["rate=0.1,0.2,0.1"], ["repeats 0.1 for 'rate'"]),
        (["method=random,full"], ["'method' cannot be a key of the grid", "--methods"]),
        (["seeds=1,2"], ["'seeds' cannot be a key of the grid", "--seeds"]),
    ],
)
def test_a_mistake_in_a_grid_is_named(settings, words):
    with refused(*words):
        read_grid(settings)


def test_values_that_are_no_list_are_refused():
    with refused("the grid has 0.1 for 'rate'", "a list of values"):
        check_grid({"rate": 0.1})
    with refused("the grid has 'mixed' for 'capacity'", "a list of values"):
        check_grid({"capacity": "mixed"})


def test_a_grid_of_more_runs_than_can_be_meant_is_refused_with_their_number():
    assert check_size({"a": range(50)}, 2, 100) == 10_000
    with refused("51 points x 2 methods x 100 seeds = 10,200 runs; expected at most 10,000"):
        check_size({"a": range(51)}, 2, 100)
    with refused("no methods given"):
        check_size({"a": [1]}, 0, 1)


@pytest.mark.parametrize("grid", [["rate"], "rate", [("rate", [0.1])], 5, {"rate"}])
def test_a_grid_that_is_no_dictionary_is_refused(grid):
    with refused(f"sweep: the grid is {grid!r}", 'expected a dictionary from keys to values, such as {"rate"'):
        check_grid(grid)


@pytest.mark.parametrize("key", [1, "", None])
def test_a_key_that_is_no_name_is_refused(key):
    with refused(f"sweep: the grid has the key {key!r}; expected the name of a setting"):
        check_grid({key: [1]})
