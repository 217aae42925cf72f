"""The experiment of a deployment, and the models in its run directory."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmfl.deployment.engine import Deployment
from mmfl.deployment.exchange import NoNodes
from mmfl.deployment.remote_federation import UserModule
from mmfl.deployment.roster import Events
from mmfl.deployment.settings import DeploymentSettings
from mmfl.deployment.update_bound import UpdateBound
from mmfl.errors import UserError
from mmfl.methods import make_method
from mmfl.runs.directory import RunDirectory
from mmfl.runs.experiment import Experiment
from mmfl.runs.results import Comparison
from mmfl.runs.trained import restore_models

_EXPERIMENT = {"rounds", "rate", "evaluate_every", "evaluate_last", "checkpoint_every", "keep_best", "average"}


def experiment_of(engine: Deployment, settings: DeploymentSettings) -> Experiment:
    """What a deployment runs: one method with one seed, over the clients of the nodes, with a bound on updates."""
    method = make_method(settings.method)
    if settings.clip:
        method = replace(
            method, aggregation=UpdateBound(method.aggregation, settings.clip, engine.report_clipped_update)
        )
    return Experiment(
        federation_of=lambda seed: engine.federation,
        methods=[method],
        seeds=[settings.seed],
        stop=settings.stop.build(),
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
    tasks = UserModule.load(module).tasks
    engine = Deployment(NoNodes(), tasks, settings, Events(Path(os.devnull)), lambda: False)
    return restore_models(directory, experiment_of(engine, settings), engine)
