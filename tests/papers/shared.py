"""What the tests of tables and figures share: verdicts, frames, and quick forms."""

import pandas as pd
import pytest

from conftest import made_once
from mmfl.papers import CATALOGUE, reproduce
from mmfl.papers.reproduction import Findings, Frames, PaperTrainer, Verdict
from mmfl.papers.store import Results

ON_CPU = PaperTrainer("cpu")
HOLDS, FAILS, OPEN = Verdict.HOLDS, Verdict.FAILS, Verdict.OPEN


def verdicts(findings: Findings, *words: str) -> list[Verdict]:
    """The verdicts of the claims whose text has all these words."""
    return [claim.verdict for claim in findings.claims if all(word in claim.text for word in words)]


class Short(PaperTrainer):
    """Trains for at most three rounds with two seeds."""

    def compare(self, federation, methods, rounds, rate, seeds, **options):
        return super().compare(federation, methods, min(rounds, 3), rate, list(seeds)[:2], **options)


def quick(
    factory: pytest.TempPathFactory, *ids: str, trainer: PaperTrainer = ON_CPU
) -> tuple[Results, dict[str, Findings]]:
    """The quick forms of tables and figures: each part is trained once for all tests, then the pages are written."""
    chosen, how = reproduce.select(ids, CATALOGUE), type(trainer).__name__
    results = Results(made_once(factory, f"quick {how}", lambda folder: None))
    for part in reproduce.parts_of(chosen, True):
        name = f"{how} {part.name.replace('/', ' ')}"
        made_once(factory, name, lambda _, part=part: results.run(part, True, trainer))
    return results, {each.id: findings for each, findings in reproduce.render(chosen, results, True)}


def together(*frames: Frames) -> Frames:
    """Frames of the same names, one below the other."""
    return {name: pd.concat([each[name] for each in frames], ignore_index=True) for name in frames[0]}
