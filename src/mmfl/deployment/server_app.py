"""The server of a deployment: the run, and the ServerApp in which Flower runs it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from mmfl.deployment.engine import Deployment
from mmfl.deployment.events import Events
from mmfl.deployment.exchange import Limits
from mmfl.deployment.flower_transport import FlowerTransport
from mmfl.deployment.settings import DeploymentSettings
from mmfl.deployment.transport import Transport
from mmfl.deployment.user_module import UserModule
from mmfl.errors import UserError
from mmfl.methods import make_method
from mmfl.runs.directory import RunDirectory
from mmfl.runs.experiment import Experiment, conduct
from mmfl.runs.files import write_atomically
from mmfl.runs.layout import CONFIG, ENDED, EVENTS, STOP
from mmfl.runs.listener import Listener
from mmfl.runs.lock import hold
from mmfl.runs.results import Comparison
from mmfl.runs.status import StatusWriter


def run(
    transport: Transport,
    module: UserModule,
    settings: DeploymentSettings,
    directory: Path | None = None,
    resume: bool = False,
    listener: Listener | None = None,
) -> Comparison:
    """Runs a deployment from its first round, or from its last checkpoint, to its end.

    When a file `stop` appears in the run directory, it stops after the current round, with a checkpoint.
    """
    if settings.clients < 1:
        raise UserError(f"deployment: clients is {settings.clients}; expected at least 1.")
    if settings.least > settings.clients:
        raise UserError(f"deployment: least is {settings.least}; expected at most the {settings.clients} clients.")
    limits = Limits(
        timeout=settings.timeout,
        first_round_wait=settings.gather,
        max_wait=settings.patience,
        min_clients=settings.least,
        max_update_ratio=settings.norm,
    )
    events = Events(None if directory is None else directory / EVENTS)
    asked_to_stop = (lambda: False) if directory is None else (directory / STOP).exists
    engine = Deployment(transport, module.tasks, settings.clients, settings.method, limits, events, asked_to_stop)
    experiment = Experiment(
        federation_of=lambda seed: engine.federation,
        methods=[make_method(settings.method)],
        seeds=[settings.seed],
        rounds=settings.rounds,
        rate=settings.rate,
        evaluate_every=settings.evaluate_every,
        evaluate_last=settings.evaluate_last,
        checkpoint_every=settings.checkpoint_every,
    )
    if directory is None:
        return conduct(experiment, engine, listener=listener)
    with hold(directory):
        existing, begun = directory, (directory / CONFIG).is_file()

        def open_directory() -> RunDirectory:
            if begun:
                return RunDirectory(existing, locked=True)
            return RunDirectory.create(existing, config(settings), locked=True)

        if begun:
            StatusWriter(existing, settings.rounds).wait(f"{settings.clients} clients")

        return conduct(
            experiment,
            engine,
            open_directory=open_directory,
            resume=resume,
            listener=listener,
            asked_to_stop=asked_to_stop,
        )


def config(settings: DeploymentSettings) -> dict[str, Any]:
    """The configuration that the run directory keeps."""
    return {"source": "deployment", **settings.model_dump()}


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs a deployment on the SuperLink's machine; writes how it ended to `ended.json` in the run directory."""
    run_config = context.run_config
    directory = Path(str(run_config["directory"]))

    def work() -> Comparison:
        module = UserModule.find(str(run_config["module"]))
        settings = DeploymentSettings.of(json.loads(str(run_config["settings"])))
        return run(FlowerTransport(grid), module, settings, directory, bool(run_config["resume"]))

    record_outcome(directory, work, context.run_id)


def record_outcome(directory: Path, work: Callable[[], Comparison], run: int = 0) -> None:
    """Does the work, and writes to `ended.json` how it ended."""
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
        outcome = {"state": state, "message": message, "run": run}
        write_atomically(directory / ENDED, json.dumps(outcome).encode())
