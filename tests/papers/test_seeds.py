"""Seeds that are added to a table or figure until its claims are decided."""

from functools import partial

import pandas as pd
import pytest
from shared import HOLDS, OPEN
from tiny import draw, part, table

from conftest import refused
from mmfl.papers import CATALOGUE, reproduce
from mmfl.papers.evidence import fact, greater
from mmfl.papers.reproduction import OWN, Findings, Frames, PaperTrainer, Part, Reproduction
from mmfl.papers.seeds import findings
from mmfl.papers.store import Results


def verdicts(claims):
    return [claim.verdict for claim in claims]


class Trial:
    """A table of one part with two claims, of which the second needs more than the three planned seeds."""

    def __init__(self):
        self.ran: list[str] = []
        self.table = self.reproduction("one", "two")

    def reproduction(self, *names: str) -> Reproduction:
        parts = [Part(f"trial/{name}", 4, range(3), partial(self.run, name)) for name in names]
        return Reproduction(
            "trial",
            "ucb",
            "A trial",
            "Numbers are drawn.",
            lambda quick: parts,
            self.find,
            draw,
        )

    def run(self, name: str, trainer: PaperTrainer) -> Frames:
        seeds = list(range(3) if trainer.seeds is None else trainer.seeds)
        self.ran.append(f"{name} {seeds[0]} to {seeds[-1]}")
        easy = [1 + 0.01 * (seed % 3) for seed in seeds]
        hard = [0.4 + (0.5 if seed % 2 else -0.5) for seed in seeds]
        frame = pd.DataFrame({"seed": seeds, "part": name, "ours": easy, "hard": hard})
        return {"scores": frame, "setting": pd.DataFrame({"part": [name]})}

    def find(self, frames: Frames) -> Findings:
        one = frames["scores"].query("part == 'one'").set_index("seed")
        claims = [greater("easy", "1", one["ours"], 0.0), greater("hard", "1", one["hard"], 0.0)]
        return Findings(frames["setting"], [*claims, greater("ours", OWN, one["hard"] - 0.4, 0.0)])


@pytest.fixture
def trial():
    return Trial()


def add(trial: Trial, folder, most=40, **how) -> list[str]:
    said: list[str] = []
    reproduce.train_until_decided([trial.table], Results(folder), True, PaperTrainer(), said.append, most)
    return [line for line in said if line.startswith("trial:")]


def test_seeds_are_added_to_all_parts_until_the_papers_claims_are_decided(trial, tmp_path):
    said = add(trial, tmp_path)
    assert trial.ran[:6] == ["one 0 to 2", "two 0 to 2", "one 3 to 7", "two 3 to 7", "one 8 to 12", "two 8 to 12"]
    assert said[0] == "trial: 3 seeds, 1 of 2 claims not decided"
    assert said[-1].endswith("0 of 2 claims not decided")
    results = Results(tmp_path)
    found = findings(trial.table, results, True)
    assert verdicts(found.claims) == [HOLDS, HOLDS, OPEN]
    assert found.table["part"].tolist() == ["one", "two"]  # what has no seeds is kept once
    ((_, shown),) = reproduce.render([trial.table], results, True)
    assert shown.claims == found.claims
    assert "Seeds 3 to " in (tmp_path / "trial.md").read_text()
    assert "| trial/two/seeds-3-7 (quick) | 4 | 3 to 7 |" in (tmp_path / "trial.md").read_text()
    assert add(trial, tmp_path) == said[-1:]


def test_there_are_never_more_seeds_than_asked_for_and_a_later_call_goes_on(trial, tmp_path):
    assert add(trial, tmp_path, most=3) == ["trial: 3 seeds, 1 of 2 claims not decided"]
    assert add(trial, tmp_path, most=10)[-1].startswith("trial: 10 seeds")
    assert trial.ran[-2:] == ["one 8 to 9", "two 8 to 9"]
    add(trial, tmp_path)
    assert trial.ran[6] == "one 10 to 14"


def test_a_block_that_was_broken_off_goes_on_and_does_not_count_before(trial, tmp_path, monkeypatch):
    def broken(name, trainer):
        if trainer.seeds is not None and name == "two":
            raise KeyboardInterrupt
        return Trial.run(trial, name, trainer)

    monkeypatch.setattr(trial, "run", broken)
    trial.table = trial.reproduction("one", "two")
    with pytest.raises(KeyboardInterrupt):
        add(trial, tmp_path, most=8)
    assert "3 seeds" in findings(trial.table, Results(tmp_path), True).claims[0].ours
    monkeypatch.undo()
    trial.table = trial.reproduction("one", "two")
    add(trial, tmp_path, most=8)
    assert trial.ran == ["one 0 to 2", "two 0 to 2", "one 3 to 7", "two 3 to 7"]
    assert "8 seeds" in findings(trial.table, Results(tmp_path), True).claims[0].ours


def test_pages_that_share_a_part_use_the_seeds_that_all_their_parts_have(trial, tmp_path):
    add(trial, tmp_path, most=8)
    results, wider = Results(tmp_path), trial.reproduction("one", "three")
    reproduce.train(wider.parts(True), results, True, PaperTrainer(), lambda text: None)
    assert "3 seeds" in findings(wider, results, True).claims[0].ours
    assert "8 seeds" in findings(trial.reproduction("one"), results, True).claims[0].ours


def test_a_page_without_claims_that_seeds_could_decide_is_refused(tmp_path):
    quiet = table(
        "quiet", part("quiet/a", []), find=lambda frames: Findings(frames["scores"], [fact("a", "", "", True)])
    )
    with refused("reproduce: quiet has no claim that more seeds could decide"):
        reproduce.train_until_decided([quiet], Results(tmp_path), True, PaperTrainer(), print, 9)


def test_a_quick_page_gets_more_seeds_and_says_so(tmp_path):
    made, said = CATALOGUE["mfa-fig1"], []
    results = Results(tmp_path)
    reproduce.train_until_decided([made], results, True, PaperTrainer("cpu"), said.append, 6)
    looks = [line for line in said if line.startswith("mfa-fig1:")]
    assert [line.partition(",")[0] for line in looks] == ["mfa-fig1: 4 seeds", "mfa-fig1: 6 seeds"]
    ((_, found),) = reproduce.render([made], results, True)
    assert all("6 seeds" in claim.ours for claim in found.claims if "on average" in claim.text)
    assert "/seeds-4-5 (quick) | 40 | 4, 5 |" in (tmp_path / "mfa-fig1.md").read_text()
