"""The models of a run directory: its federation, built again from the configuration, and a checkpoint's weights."""

from typing import Any

from mmfl.engine import Engine, Simulation
from mmfl.errors import UserError
from mmfl.runs import checkpoint
from mmfl.runs.config import parse
from mmfl.runs.directory import RunDirectory
from mmfl.runs.experiment import Experiment, comparison, start
from mmfl.runs.layout import CONFIG
from mmfl.runs.results import Comparison
from mmfl.runs.snapshots import Snapshot, fingerprint

_WITHOUT_TASKS = {
    "python": "was started from Python, where its tasks are: train there with resume=True, and call run.export",
    "sweep": "is a part of a sweep; expected a run of its own: train the point that you want with `mmfl run`",
}


def load_trained(directory: RunDirectory, config: dict[str, Any]) -> Comparison:
    """The runs in a directory with the weights of its last checkpoint, and without records. Nothing there is changed.

    Only for runs of a configuration, which describes the tasks.
    """
    if reason := _WITHOUT_TASKS.get(str(config.get("source"))):
        raise UserError(f"export: run '{directory.path}' {reason}.")
    return restore_models(directory, parse(config, str(directory.path / CONFIG)).experiment(), Simulation("cpu"))


def restore_models(directory: RunDirectory, experiment: Experiment, engine: Engine) -> Comparison:
    """The runs of an experiment with the weights of its last checkpoint, and without records."""
    replicas = start([experiment], engine)
    like = Snapshot([replica.state for replica in replicas])
    found = checkpoint.read(directory.checkpoints, fingerprint(replicas), like, engine.world)
    if found is None:
        raise UserError(f"export: run '{directory.path}' has no checkpoint yet.")
    for replica, state in zip(replicas, found[1].replicas, strict=True):
        replica.state = state
    return comparison(replicas, [])
