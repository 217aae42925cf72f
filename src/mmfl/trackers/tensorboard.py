"""TensorBoard: event files, a folder for each replica."""

from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from mmfl.errors import UserError
from mmfl.trackers.logged import Parameters
from mmfl.trackers.tracker import Tracker

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


class TensorBoard(Tracker["SummaryWriter"]):
    """Event files in FOLDER/METHOD-seed-SEED; by default the folder is `tensorboard` in the run's directory.

    Look at them with `tensorboard --logdir FOLDER`, at many runs with `tensorboard --logdir runs`. The configuration is
    on the page HPARAMS. A resumed run writes its event file anew, whole; another run in the same folder has a number
    in its name.
    """

    name = "tensorboard"
    module = "torch.utils.tensorboard"

    def __init__(self, folder: str | Path | None = None):
        super().__init__()
        self.folder = folder

    def start(self, run: str, parameters: Parameters) -> "SummaryWriter":
        """Opens an event file, in place of the one that a resumed run had."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        place = self._place()
        name = self.known.setdefault(run, _free(place, run))
        for earlier in (place / name).glob("events.out.tfevents.*"):
            earlier.unlink()
        writer = SummaryWriter(str(place / name), purge_step=1)  # to a TensorBoard that has read it: begin again
        for summary in hparams(parameters, dict.fromkeys(("overall/mean", "overall/worst"))):
            writer._get_file_writer().add_summary(summary)
        return writer

    def log(self, run: "SummaryWriter", round: int, values: Mapping[str, float]) -> None:
        """Adds a point to every curve."""
        for name, value in values.items():
            run.add_scalar(name, value, round)
        run.flush()

    def finish(self, run: "SummaryWriter", done: bool) -> None:
        """Closes the event file."""
        run.close()

    def _place(self) -> Path:
        if self.folder is not None:
            return Path(self.folder)
        if self.directory is None:
            raise UserError("tracker 'tensorboard' has no folder to write to; expected one, or a run with a directory.")
        return self.directory.path / "tensorboard"


def _free(place: Path, run: str) -> str:
    """The run's name, with a number where another run has it."""
    return next(name for name in chain([run], (f"{run}-{n}" for n in count(2))) if not (place / name).exists())
