"""The experiment of a deployment, and the models in its run directory."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mmfl.deployment.control import Course, course_at
from mmfl.deployment.engine import Deployment
from mmfl.deployment.exchange import NoNodes, Transport
from mmfl.deployment.remote_federation import UserModule
from mmfl.deployment.roster import Events
from mmfl.deployment.settings import DeploymentSettings
from mmfl.deployment.update_bound import UpdateBound
from mmfl.errors import UserError
from mmfl.methods import make_method
from mmfl.runs.checkpoint import newest_round
from mmfl.runs.directory import RunDirectory
from mmfl.runs.experiment import Experiment
from mmfl.runs.live import LiveStateWriter
from mmfl.runs.results import Comparison
from mmfl.runs.trained import restore_models

_EXPERIMENT = {"rounds", "rate", "evaluate_every", "evaluate_last", "checkpoint_every", "keep_best", "average"}


def deployment_of(
    course: Course,
    transport: Transport,
    events: Events,
    asked_to_stop: Callable[[], bool] = lambda: False,
    run: str = "",
    live: LiveStateWriter | None = None,
) -> Deployment:
    """The engine of a deployment, with the tasks that were added and retired so far."""
    engine = _kind_of(course.settings)(transport, course.tasks, course.settings, events, asked_to_stop, run, live)
    engine.federation.task_arrivals = np.array(course.arrivals, dtype=np.int64)
    for name in sorted(course.retired):
        engine.federation.retire_task(name)
    return engine


def _kind_of(settings: DeploymentSettings) -> type[Deployment]:
    """The engine's class. That of secure aggregation imports Flower, which a model can be exported without."""
    if settings.secure_aggregation is None:
        return Deployment
    kind: type[Deployment] = import_module("mmfl.deployment.secure_engine").SecureDeployment
    return kind


def experiment_of(engine: Deployment, settings: DeploymentSettings) -> Experiment:
    """What a deployment runs: one method with one seed, over the clients of the nodes, with a bound on updates."""
    method = make_method(settings.method)
    if factor := settings.update_bound():
        method = replace(method, aggregation=UpdateBound(method.aggregation, factor, engine.report_clipped_update))
    return Experiment(
        federation_of=lambda seed: engine.federation,
        methods=[method],
        seeds=[settings.seed],
        stop=settings.stop.build(),
        central_noise=settings.noise(),
        **settings.model_dump(include=_EXPERIMENT),
    )


def load_deployed(directory: RunDirectory, config: Mapping[str, Any]) -> Comparison:
    """The run of a deployment with the weights of its last checkpoint. The module that it was started with is loaded
    again; no node is asked, and none need be there."""
    if not {"deployment", "settings"} <= config.keys():
        raise UserError(f"export: run '{directory.path}' does not say with which module it was started.")
    module, settings = Path(config["deployment"]["module"]), DeploymentSettings.of(config["settings"])
    if not module.is_file():
        raise UserError(f"export: run '{directory.path}' was started with '{module}', which is not there any more.")
    at = newest_round(directory.checkpoints)
    course = course_at(directory.path, UserModule.load(module).tasks, settings, at)
    engine = deployment_of(course, NoNodes(), Events(Path(os.devnull)))
    return restore_models(directory, experiment_of(engine, course.settings), engine)
