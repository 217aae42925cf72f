"""A table in miniature, for tests of what all tables and figures share."""

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from mmfl.papers.evidence import greater
from mmfl.papers.reproduction import Findings, Frames, Part, Reproduction

SCORES = pd.DataFrame({"seed": [0, 1, 2], "ours": [0.5, 0.6, 0.7], "theirs": [0.4, 0.49, 0.6]})


def part(name: str, calls: list[str], frames: Callable[[], Frames] = lambda: {"scores": SCORES}) -> Part:
    """A part that trains nothing, and notes in `calls` that it was run."""

    def run(trainer: object) -> Frames:
        calls.append(name)
        return frames()

    return Part(name, 7, range(3), run)


def find(frames: Frames) -> Findings:
    scores = frames["scores"]
    table = pd.DataFrame({"method": ["ours|theirs"], "rows": [len(scores)]})
    return Findings(table, [greater("ours ahead", "0.1", scores["ours"], scores["theirs"])], ["A note."])


def draw(frames: Frames) -> Figure:
    figure = Figure()
    figure.subplots().plot(frames["scores"]["ours"])
    return figure


def table(id: str, *parts: Part, paper: str = "ucb", find=find) -> Reproduction:
    """The table made of these parts."""
    return Reproduction(id, paper, f"The table {id}", "Nothing is trained.", lambda quick: parts, find, draw)


TINY = table("tiny-table", part("tiny/a", []))
