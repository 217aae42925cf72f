"""The results folder: the measurements of parts, so that tables and figures can be rendered without training."""

import json
import os
import subprocess
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch

import mmfl
from mmfl.engine.device import choose_device
from mmfl.errors import UserError
from mmfl.papers.reproduction import ADDED, Frames, PaperTrainer, Part
from mmfl.runs.files import write_atomically


@dataclass(frozen=True)
class About:
    """How a part was run."""

    part: str
    quick: bool
    rounds: int
    seeds: list[int]
    device: str
    seconds: float
    version: str
    commit: str


class Results:
    """A folder of results: `data/<part>/` with a compressed CSV per frame and `about.json`."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def done(self, part: Part, quick: bool) -> bool:
        """Whether a part has been run, in the quick or the full form."""
        about = self.about(part)
        return about is not None and about.quick == quick

    def about(self, part: Part) -> About | None:
        """How a part was run; None if it was not."""
        path = self._place(part) / "about.json"
        if not path.is_file():
            return None
        with reading(path):
            return About(**json.loads(path.read_text()))

    def run(self, part: Part, quick: bool, trainer: PaperTrainer) -> None:
        """Runs a part and stores what it measured; `about.json` comes last: an interrupted part counts as not run."""
        place = self._place(part)
        with writing(self.folder):  # before the training, which may take long
            place.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        frames = part.run(trainer)
        seconds, version = round(time.monotonic() - started, 1), f"mmfl {mmfl.__version__}, torch {torch.__version__}"
        device, seeds = device_name(trainer), list(part.seeds)
        about = About(part.name, quick, part.rounds, seeds, device, seconds, version, commit())
        with writing(self.folder):
            for old in (place / "about.json", *place.glob("*.csv.gz")):
                old.unlink(missing_ok=True)
            for name, frame in frames.items():
                packing = {"method": "gzip", "mtime": 0}
                frame.to_csv(place / f"{name}.csv.gz", index=False, float_format="%.5g", compression=packing)
            write_atomically(place / "about.json", (json.dumps(asdict(about), indent=1) + "\n").encode())

    def frames(self, parts: Sequence[Part]) -> Frames:
        """The measurements of the parts; frames with the same name are concatenated.

        Of parts that add seeds, only frames with seeds count: the others describe the setting, or what is drawn of the
        first seeds.
        """
        found: dict[str, list[pd.DataFrame]] = {}
        for part in parts:
            for path in sorted(self._place(part).glob("*.csv.gz")):
                with reading(path):
                    frame = pd.read_csv(path)
                if not part.adds_seeds or "seed" in frame:
                    found.setdefault(path.name.removesuffix(".csv.gz"), []).append(frame)
        return {name: pd.concat(frames, ignore_index=True) for name, frames in found.items()}

    def seeds_added(self, part: Part) -> list[range]:
        """The seeds that were added to a part, in so many blocks."""
        blocks = (place.name.removeprefix(ADDED).split("-") for place in self._place(part).glob(f"{ADDED}*-*"))
        return sorted((range(int(first), int(last) + 1) for first, last in blocks), key=lambda seeds: seeds[0])

    def _place(self, part: Part) -> Path:
        return self.folder / "data" / part.name


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Converts errors while writing into a `UserError` that names the results folder."""
    try:
        yield
    except OSError as error:
        raise UserError(f"results folder '{folder}' cannot be written: {error.strerror}.") from None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Converts errors while reading a file of a part into a `UserError` that names it."""
    try:
        yield
    except (ValueError, TypeError, OSError, EOFError, zlib.error) as error:
        raise UserError(f"'{path}' cannot be read: {error}. Delete its folder and run the part again.") from None


def device_name(trainer: PaperTrainer) -> str:
    """The name of the accelerator, with the precision if that is not float32; or the number of CPU threads."""
    chosen = choose_device(trainer.device)
    if chosen.type == "cuda":
        name = torch.cuda.get_device_name(chosen)
        return name if trainer.precision == "float32" else f"{name}, {trainer.precision}"
    return f"CPU, {torch.get_num_threads()} threads"


def commit() -> str:
    """The commit of the source: `MMFL_COMMIT` if the source is a copy without its history, otherwise from git."""
    if named := os.environ.get("MMFL_COMMIT"):
        return named
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
