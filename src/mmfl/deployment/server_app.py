"""The server of a deployment: the run, and the ServerApp in which Flower runs it."""

import hashlib
import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from mmfl.deployment.control import Control, course_at
from mmfl.deployment.exchange import Transport
from mmfl.deployment.flower_transport import FlowerTransport
from mmfl.deployment.known_nodes import KnownNodes
from mmfl.deployment.programs import MODULE, NODES_VARIABLE
from mmfl.deployment.remote_federation import UserModule
from mmfl.deployment.roster import Events
from mmfl.deployment.settings import DeploymentSettings
from mmfl.deployment.trained import deployment_of, experiment_of
from mmfl.errors import UserError
from mmfl.runs.checkpoint import newest_round
from mmfl.runs.directory import RunDirectory
from mmfl.runs.experiment import conduct
from mmfl.runs.files import write_atomically
from mmfl.runs.layout import CHECKPOINTS, ENDED, EVENTS, STOP
from mmfl.runs.live import LiveStateWriter
from mmfl.runs.lock import hold
from mmfl.runs.results import Comparison
from mmfl.runs.status import RunEnd, StatusWriter


def run(
    transport: Transport,
    module: UserModule,
    settings: DeploymentSettings,
    directory: Path,
    resume: bool = False,
    known: KnownNodes | None = None,
) -> Comparison:
    """Runs a deployment from its first round, or from its last checkpoint, to its end.

    `known` says which nodes may serve which clients. When a file `stop` appears in the run directory, it stops after
    the current round, with a checkpoint; other files there pause it or change it between two rounds (`Control`).
    """
    asked_to_stop = (directory / STOP).exists
    course = course_at(directory, module.tasks, settings, newest_round(directory / CHECKPOINTS) if resume else 0)
    settings, live = course.settings, LiveStateWriter(directory)
    live.known |= {"rounds": settings.rounds, "rate": settings.rate}
    events = Events(directory / EVENTS, known)
    engine = deployment_of(course, transport, events, asked_to_stop, _mark(directory), live)
    with hold(directory):
        StatusWriter(directory, settings.rounds).wait(f"{settings.clients} clients")
        return conduct(
            experiment_of(engine, settings),
            engine,
            adjust=Control(directory, engine, course, asked_to_stop),
            open_directory=lambda: RunDirectory(directory, locked=True),
            resume=resume,
            asked_to_stop=asked_to_stop,
        )


def _mark(directory: Path) -> str:
    """Tells nodes one run from another; that of a run and of its resumption are the same."""
    return hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs a deployment on the SuperLink's machine; writes how it ended to `ended.json` in the run directory."""
    run_config = context.run_config
    directory = Path(str(run_config["directory"]))

    def work() -> Comparison:
        user_module = find_spec(MODULE)
        assert user_module is not None
        assert user_module.origin is not None  # it is a file of the app
        module = UserModule.load(Path(user_module.origin))
        settings = DeploymentSettings.of(json.loads(str(run_config["settings"])))
        nodes = os.environ.get(NODES_VARIABLE)
        known = KnownNodes(Path(nodes) if nodes else None)
        return run(FlowerTransport(grid), module, settings, directory, bool(run_config["resume"]), known)

    record_outcome(directory, work, context.run_id)


def record_outcome(directory: Path, work: Callable[[], Comparison], run: int = 0) -> None:
    """Does the work, and writes to `ended.json` how it ended.

    Where Flower ends the process, because the SuperLink was away for too long, nothing is written: the run goes on with
    another process.
    """
    end: RunEnd | None = RunEnd("finished")
    try:
        work()
    except (KeyboardInterrupt, UserError) as error:
        end = RunEnd.from_error(error)
    except SystemExit:
        end = None
        raise
    except BaseException as error:
        end = RunEnd.from_error(error)
        raise
    finally:
        if end:
            directory.mkdir(parents=True, exist_ok=True)
            outcome = {"state": end.condition, "message": end.reason, "run": run}
            write_atomically(directory / ENDED, json.dumps(outcome).encode())
