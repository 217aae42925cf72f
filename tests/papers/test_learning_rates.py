"""How a learning rate is chosen from a sweep, and the quick sweep."""

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from shared import quick

from mmfl.papers import CATALOGUE, learning_rates
from mmfl.papers.reproduction import federations

(MADE,) = learning_rates.REPRODUCTIONS


def swept(accuracies: dict[float, list[float]]) -> pd.DataFrame:
    """Final accuracies by rate, a list over seeds."""
    return pd.DataFrame(
        [
            {"seed": seed, "rate": rate, "accuracy": value}
            for rate, values in accuracies.items()
            for seed, value in enumerate(values, 1000)
        ]
    )


@pytest.mark.parametrize(
    ("accuracies", "best"),
    [
        ({0.1: [0.6], 0.2: [0.7], 0.4: [0.69], 0.8: [0.1]}, 0.2),  # the best, with room above it
        ({0.1: [0.6], 0.2: [0.7], 0.4: [0.72], 0.8: [0.1]}, 0.2),  # the best is at the edge
        ({0.1: [0.6], 0.2: [0.7], 0.4: [0.66], 0.8: [0.1]}, 0.2),  # four points less are room enough
        ({0.1: [0.6], 0.2: [0.7], 0.4: [0.64], 0.8: [0.1]}, 0.1),  # six are not
        ({0.1: [0.6], 0.2: [0.7], 0.4: [0.8]}, 0.2),  # of the largest it is not known
        ({0.1: [0.6], 0.2: [0.7], 0.4: [np.nan]}, 0.1),  # diverged
        ({0.4: [0.1, 0.2], 0.1: [0.7, 0.5], 0.2: [0.3, 0.88]}, 0.1),  # a mean over seeds, in any order
        ({0.1: [0.9], 0.2: [0.5], 0.4: [0.1]}, np.nan),  # none leaves room
        ({0.1: [0.9]}, np.nan),
    ],
)
def test_the_best_rate_is_one_that_leaves_room(accuracies, best):
    assert learning_rates.choose(swept(accuracies)) == pytest.approx(best, nan_ok=True)


def test_the_chosen_rate_stands_beside_the_presets_and_a_line_is_drawn_for_each_data_set():
    first = swept({0.1: [0.6, 0.62], 0.2: [0.7, 0.72], 0.4: [0.5, 0.5]}).assign(data="emnist")
    frames = {"sweep": pd.concat([first, swept({0.5: [0.9], 1.0: [0.9]}).assign(data="digits")])}
    assert learning_rates.find(frames).table.to_numpy().tolist() == [
        ["emnist", "0.1: 0.610 ± 0.014, 0.2: 0.710 ± 0.014, 0.4: 0.500 ± 0.000", "0.1", 0.2],
        ["digits", "0.5: 0.900, 1: 0.900", "0.5", 0.5],
    ]
    figure = learning_rates.draw(frames)
    assert [line.get_label() for line in figure.axes[0].lines] == ["emnist", "digits"]
    pyplot.close(figure)


def test_no_result_uses_the_seeds_of_the_sweeps():
    others = [part for made in CATALOGUE.values() if made is not MADE for part in made.parts(False)]
    assert not {seed for part in others for seed in part.seeds} & set(learning_rates.SEEDS)


def test_quick_sweep_trains_every_rate_on_the_same_examples(tmp_path_factory):
    results, found = quick(tmp_path_factory, MADE.id)
    assert found[MADE.id].table["in the preset"].tolist() == [0.5]
    mean = results.frames(MADE.parts(True))["sweep"].groupby("rate")["accuracy"].mean()
    assert mean.index.tolist() == [0.05, 0.5, 5.0]
    assert mean[0.05] < mean[0.5] - 0.1


def test_rates_one_task_per_rate_share_the_clients_of_the_preset():
    sweep = learning_rates.RateSweep("demo", "digits-linear", (0.1, 0.2), 1)
    preset = federations("demo", ["federation.lacks=0.0"])(7)
    federation = learning_rates.one_task_per_rate(preset, sweep)
    assert {task.name: task.lr for task in federation.tasks} == {"0.1": 0.1, "0.2": 0.2}
    assert federation.shards[0].index.tolist() == federation.shards[1].index.tolist()
    assert federation.shards[0].index.tolist() == preset.shards[1].index.tolist()
