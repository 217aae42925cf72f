"""The record of a round: its JSON is what every version has written, and reads back as it was."""

import json
import subprocess
import sys

from mmfl.record import Cost, Drawn, RoundRecord, TaskRecord
from mmfl.trackers.logged import numbers

LINE = (
    '{"round": 3, "method": "mmfl-group", "seed": 1, "mean": 0.5, "worst": null, "tasks": {"a": {"metric": 0.5, '
    '"loss": 1.25, "training_loss": null, "active": 2, "rejected": 0, "step_size": 1.0, "step_size_variance": 0.0, '
    '"loss_variance": null, "update_variance": null, "probability_min": 0.3, "beta_mean": 0.9}}, "clients": 12, '
    '"clients_seen": 2, "cost": {"trainings": 2, "processors": 2, "forward_passes": 0, "bytes_up": 5200, '
    '"bytes_down": 5200, "stored_bytes": 0}, "drawn": {"a": [[0, 11], [1, 2]]}, "clusters": {"client": [0, 11]}, '
    '"seconds": 0.0418, "faults": {"late": 1}}'
)


def test_a_record_is_read_and_written_byte_for_byte():
    record = RoundRecord.from_json(json.loads(LINE))
    assert json.dumps(record.to_json()) == LINE
    assert record.tasks["a"].extras == {"probability_min": 0.3, "beta_mean": 0.9}
    assert (record.drawn["a"], record.drawn_clients("b")) == (Drawn([0, 11], [1, 2]), [])
    assert (record.extras, record.faults) == ({"clusters": {"client": [0, 11]}}, {"late": 1})
    assert [record.tasks["a"].value(name) for name in ("loss", "beta_mean", "unknown")] == [1.25, 0.9, None]


def test_a_record_of_a_version_that_recorded_less_is_read():
    values = {"round": 1, "method": "full", "seed": 0, "tasks": {"a": {"metric": 0.1}}, "clients": 4, "cost": {}}
    record = RoundRecord.from_json(values)
    assert record == RoundRecord(1, "full", 0, tasks={"a": TaskRecord(0.1)}, clients=4, cost=Cost())
    assert "faults" not in record.to_json()


def test_averages_are_in_a_record_where_there_are_some():
    task = TaskRecord(0.5, average_metric=0.6, average_loss=1.5)
    record = RoundRecord(1, "full", 0, mean=0.5, average_mean=0.6, tasks={"a": task}, clients=4)
    values = record.to_json()
    assert RoundRecord.from_json(json.loads(json.dumps(values))) == record
    assert (values["average_mean"], values["tasks"]["a"]["average_loss"]) == (0.6, 1.5)
    assert (task.numbers()["average_metric"], task.value("average_loss")) == (0.6, 1.5)
    assert not [name for name in TaskRecord(0.5).numbers() if "average" in name]
    assert numbers(record)["average_metric/a"] == numbers(record)["overall/average_mean"] == 0.6


def test_records_layout_and_listeners_need_no_torch():
    program = "import sys, mmfl.record, mmfl.runs.layout, mmfl.runs.listener; assert 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
