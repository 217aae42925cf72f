"""Weights & Biases: a run for each replica, grouped by experiment; offline unless told otherwise."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from mmfl.trackers.logged import Parameters
from mmfl.trackers.tracker import Tracker

if TYPE_CHECKING:
    import wandb

_PATIENCE = 600.0  # seconds in which its service may start; on a busy machine the default is too short


class WandB(Tracker["wandb.Run"]):
    """A run for each replica, in the group of the experiment's name.

    Runs are written to `wandb` in `folder` (by default the run's directory, else the current one) and sent nowhere;
    `wandb sync FOLDER/wandb/offline-run-*` uploads them. `WANDB_MODE=online` sends them as they go. A resumed run is
    written to a new offline run of the same id, whole, so only the last one need be uploaded.
    """

    name = "wandb"
    module = "wandb"

    def __init__(self, experiment: str | None = None, project: str = "mmfl", folder: str | Path | None = None):
        super().__init__(experiment)
        self.project, self.folder = project, folder

    def start(self, run: str, parameters: Parameters) -> "wandb.Run":
        """Starts a run beside the others."""
        import wandb

        place = Path(self.folder or (self.directory.path if self.directory else "."))
        place.mkdir(parents=True, exist_ok=True)
        self.known.setdefault(run, uuid4().hex)
        return wandb.init(
            project=self.project,
            group=self.experiment,
            name=run,
            id=self.known[run],
            config=dict(parameters),
            dir=place,
            mode=None if "WANDB_MODE" in os.environ else "offline",
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", x_disable_stats=True, x_service_wait=_PATIENCE, init_timeout=_PATIENCE
            ),
        )

    def log(self, run: "wandb.Run", round: int, values: Mapping[str, float]) -> None:
        """Logs a round, unless an online run that is resumed has it; its number is the step."""
        if round >= run.step:
            run.log(dict(values), step=round, commit=True)

    def finish(self, run: "wandb.Run", done: bool) -> None:
        """Closes the run."""
        run.finish(exit_code=0 if done else 1)
