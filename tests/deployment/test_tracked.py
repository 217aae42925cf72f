"""A deployment's rounds in a tracker: the server writes them, and whoever follows its directory tells them."""

import logging

import pytest

from mmfl.deployment.submission import _News
from mmfl.runs.experiment import Listener, ListenerGroup
from mmfl.runs.results import RunDirectory
from mmfl.trackers import TensorBoard

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
)
CONFIG = {"source": "deployment", "settings": {"clients": 4, "method": "random", "rounds": 4, "rate": 0.5}}


def record(round):
    task = {"metric": round / 10, "loss": None}
    whole = {"round": round, "method": "random", "seed": 0, "mean": round / 10, "worst": round / 10, "clients": 4}
    return {**whole, "clients_seen": 4, "tasks": {"digits": task}, "cost": {"trainings": 2}, "seconds": 0.1}


def followed(directory, listener, rounds):
    """What a command that starts or resumes a deployment hears; the server is a round ahead of what is told."""
    news = _News(listener, 4, directory, 0.5)
    for round in rounds:
        news.tell([record(round)])
    news.end()


def test_each_round_is_in_the_tracker_once_resumed_or_not(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", CONFIG)
    directory.append([record(1), record(2)])
    followed(directory, TensorBoard(), [1, 2])
    directory.append([record(3), record(4)])
    followed(directory, TensorBoard(), [3, 4])
    found = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard" / "random-seed-0")).Reload()
    points = [(event.step, round(event.value, 3)) for event in found.Scalars("metric/digits")]
    assert points == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def test_a_tracker_that_cannot_start_is_a_warning_and_the_others_hear_on(tmp_path, caplog):
    class Heard(Listener):
        def __init__(self):
            self.rounds = []

        def round(self, records):
            self.rounds += [each["round"] for each in records]

    directory, heard = RunDirectory.create(tmp_path / "run", CONFIG), Heard()
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "mmfl"):
        followed(directory, ListenerGroup([heard, TensorBoard(tmp_path / "file")]), [1, 2])
    assert heard.rounds == [1, 2]
    assert ["tracker 'tensorboard' cannot start" in text for text in caplog.messages] == [True]
