"""The server's side of a deployment: the run itself, and the ServerApp in which Flower runs it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from mmfl.deployment.engine import Deployment, Limits
from mmfl.deployment.events import Events
from mmfl.deployment.flower_transport import FlowerTransport
from mmfl.deployment.settings import DeploymentSettings
from mmfl.deployment.transport import Transport
from mmfl.deployment.user_module import Module
from mmfl.errors import UserError
from mmfl.methods import make_method
from mmfl.runs.checkpoint import write_atomically
from mmfl.runs.directory import RunDirectory
from mmfl.runs.experiment import Experiment, conduct
from mmfl.runs.layout import CONFIG, ENDED, EVENTS, STOP
from mmfl.runs.listener import Listener
from mmfl.runs.lock import hold
from mmfl.runs.results import Comparison
from mmfl.runs.status import StatusWriter


def run(
    transport: Transport,
    module: Module,
    settings: DeploymentSettings,
    directory: Path | None = None,
    resume: bool = False,
    listener: Listener | None = None,
) -> Comparison:
    """A deployment from its first round, or from its last checkpoint, to its end.

    It stops with a checkpoint after the round under way when a file `stop` appears in the run directory.
    """
    if settings.clients < 1:
        raise UserError(f"deployment: clients is {settings.clients}; expected at least 1.")
    if settings.least > settings.clients:
        raise UserError(f"deployment: least is {settings.least}; expected at most the {settings.clients} clients.")
    limits = Limits(settings.timeout, settings.gather, settings.patience, settings.least, settings.norm)
    events = Events(None if directory is None else directory / EVENTS)
    asked_to_stop = (lambda: False) if directory is None else (directory / STOP).exists
    engine = Deployment(transport, module.tasks, settings.clients, settings.method, limits, events, asked_to_stop)
    experiment = Experiment(
        lambda seed: engine.federation,
        [make_method(settings.method)],
        [settings.seed],
        settings.rounds,
        settings.rate,
        settings.evaluate_every,
        settings.evaluate_last,
        settings.checkpoint_every,
    )
    if directory is None:
        return conduct(experiment, engine, listener=listener)
    with hold(directory):
        known, begun = directory, (directory / CONFIG).is_file()

        def open_directory() -> RunDirectory:
            if begun:
                return RunDirectory(known, locked=True)
            return RunDirectory.create(known, config(settings), locked=True)

        if begun:
            StatusWriter(known, settings.rounds).wait(f"{settings.clients} clients")

        return conduct(experiment, engine, open_directory, resume, listener, asked_to_stop)


def config(settings: DeploymentSettings) -> dict[str, Any]:
    """What the run directory keeps of a deployment."""
    return {"source": "deployment", **settings.model_dump()}


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs a deployment where the SuperLink is; how it ended is in `ended.json` of the run directory."""
    told = context.run_config
    directory = Path(str(told["directory"]))

    def work() -> Comparison:
        module = Module.named(str(told["module"]))
        settings = DeploymentSettings.of(json.loads(str(told["settings"])))
        return run(FlowerTransport(grid), module, settings, directory, bool(told["resume"]))

    conclude(directory, work, context.run_id)


def conclude(directory: Path, work: Callable[[], Comparison], run: int = 0) -> None:
    """Does the work, and writes down how it ended."""
    state, message = "finished", ""
    try:
        work()
    except KeyboardInterrupt:
        state, message = "stopped", "stopped when it was asked to; resume goes on from here"
    except UserError as error:
        state, message = "failed", str(error)
    except BaseException as error:
        state, message = "failed", f"{type(error).__name__}: {error}"
        raise
    finally:
        directory.mkdir(parents=True, exist_ok=True)
        told = {"state": state, "message": message, "run": run}
        write_atomically(directory / ENDED, json.dumps(told).encode())
