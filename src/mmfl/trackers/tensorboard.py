"""TensorBoard: event files, a folder for each replica."""

from collections.abc import Mapping
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
    on the page HPARAMS. A run that is resumed, or begins again in the same folder, replaces what is shown of it.
    """

    name = "tensorboard"
    module = "torch.utils.tensorboard"

    def __init__(self, folder: str | Path | None = None):
        super().__init__()
        self.folder = folder

    def start(self, run: str, parameters: Parameters) -> "SummaryWriter":
        """Opens a new event file; rounds in earlier ones are not shown any more."""
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        writer = SummaryWriter(str(self._place() / run), purge_step=1)
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
