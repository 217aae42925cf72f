"""A deployment's rounds in a tracker: the server writes them, and whoever follows its directory tells them."""

import logging

import pytest
from traces import Heard

from mmfl.deployment.submission import RunWatcher
from mmfl.errors import UserError
from mmfl.record import Cost, RoundRecord, TaskRecord
from mmfl.runs.directory import RunDirectory
from mmfl.runs.listener import ListenerGroup
from mmfl.runs.status import RunEnd
from mmfl.trackers import TensorBoard

accumulator = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
)
CONFIG = {"source": "deployment", "settings": {"clients": 4, "method": "random", "rounds": 4, "rate": 0.5}}


def record(round):
    tasks = {"digits": TaskRecord(round / 10)}
    return RoundRecord(round, "random", 0, round / 10, round / 10, tasks, clients=4, clients_seen=4, cost=Cost(2))


def followed(directory, listener, rounds):
    """What a command that starts or resumes a deployment hears; the server is a round ahead of what is told."""
    watcher = RunWatcher(directory.path, CONFIG["settings"])
    directory.append([record(round) for round in rounds])
    watcher.tell_rounds(listener)
    watcher.tell_end(listener, RunEnd("finished"))


def test_each_round_is_in_the_tracker_once_resumed_or_not(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", CONFIG)
    followed(directory, TensorBoard(), [1, 2])
    followed(directory, TensorBoard(), [3, 4])
    found = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard" / "random-seed-0")).Reload()
    points = [(event.step, round(event.value, 3)) for event in found.Scalars("metric/digits")]
    assert points == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]


def test_a_tracker_that_cannot_start_is_a_warning_and_the_others_hear_on(tmp_path, caplog):
    directory, heard = RunDirectory.create(tmp_path / "run", CONFIG), Heard()
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING, "mmfl"):
        followed(directory, ListenerGroup([heard, TensorBoard(tmp_path / "file")]), [1, 2])
    assert heard.rounds == [1, 2]
    assert ["tracker 'tensorboard' cannot start" in text for text in caplog.messages] == [True]


def test_a_listener_knows_the_run_hears_its_end_and_can_stop_the_server_but_not_read_weights(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", CONFIG)
    stops = Heard({3: lambda: stops.info.request_stop("enough")})
    followed(directory, stops, [3])
    assert stops.info.replicas == [("random", 0)]
    assert (stops.info.first, stops.info.rounds, stops.info.clients, stops.info.tasks) == (3, 4, 4, ["digits"])
    assert stops.info.config["settings"] == CONFIG["settings"]
    assert (tmp_path / "run" / "stop").exists()
    assert stops.ended == RunEnd("finished")
    with pytest.raises(UserError, match="with its server"):
        stops.info.weights("random", 0)
