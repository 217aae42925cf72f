"""Verdicts on claims that are tested together: many on a page, or again and again with more seeds."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from shared import FAILS, HOLDS, OPEN
from tiny import part, table

from conftest import refused
from mmfl.papers import CATALOGUE, reproduce
from mmfl.papers.evidence import above_each, alike, every, fact, greater, greater_than_each, holm, selected
from mmfl.papers.families import judge, judge_looks, seeds_needed
from mmfl.papers.reproduction import OWN, Claim, Findings, Frames, Outcome, PaperTrainer, Part, Reproduction
from mmfl.papers.seeds import findings
from mmfl.papers.store import Results

NOISY = pd.Series([0.01, 0.02, 0.03, 0.015])  # p = 0.02


def series(*values: float) -> pd.Series:
    return pd.Series(values, dtype=float)


def verdicts(claims):
    return [claim.verdict for claim in claims]


# --- many comparisons ---


def test_what_one_comparison_decides_is_open_among_many():
    ours = series(0.5, 0.5, 0.5, 0.5)
    others = {f"other {n}": ours + series(0.1, -0.1, 0.05, -0.06 - n / 100) for n in range(3)}
    assert verdicts(judge(greater_than_each("above {}", "", ours, {"near": ours - NOISY}))) == [HOLDS]
    assert verdicts(judge(greater_than_each("below {}", "", ours - NOISY, {"ours": ours}))) == [FAILS]
    alone = greater_than_each("above {}", "", ours, {"near": ours - NOISY, **others})
    assert alone[0].verdict is HOLDS
    judged = judge(alone)
    assert [(each.text, each.verdict) for each in judged[:2]] == [("above near", OPEN), ("above other 0", OPEN)]
    adjusted = holm([claim.outcomes[0].p for claim in alone])
    assert judged[0].ours == f"{alone[0].ours}, p = {adjusted[0]:.3f} (Holm)"


def test_the_same_comparison_counts_once_and_our_own_questions_are_a_family_of_their_own():
    claim, noise = greater("a", "1", NOISY, 0.0), [greater("b", OWN, NOISY - 0.02 - n / 1000, 0.0) for n in range(5)]
    assert verdicts(judge([claim, claim, *noise])) == [HOLDS, HOLDS, *[OPEN] * 5]
    assert judge([claim, *(greater("b", "2", NOISY - 0.02 - n / 1000, 0.0) for n in range(5))])[0].verdict is OPEN


def test_facts_stay_as_they_are_and_count_for_nothing():
    claims = [fact("a", "", "yes", True), fact("b", "", "no", False), greater("c", "", NOISY, 0.0)]
    assert verdicts(judge(claims)) == [HOLDS, FAILS, HOLDS]
    assert [claim.ours for claim in judge(claims)[:2]] == ["yes", "no"]


def test_the_best_is_better_than_every_other_and_not_the_best_if_one_is_surely_better():
    ours, sure = series(0.5, 0.5, 0.5, 0.5), series(0.4, 0.41, 0.4, 0.4)
    wide = series(0.1, 0.6, 0.1, 0.6)  # its mean is further away than that of any other
    best = partial(above_each, "best", "", ours)
    assert verdicts(judge([best({"a": sure, "b": sure + 0.05})])) == [HOLDS]
    assert verdicts(judge([best({"a": sure, "b": wide})])) == [OPEN]
    assert verdicts(judge([best({"a": sure, "b": wide, "c": 1 - sure})])) == [FAILS]
    assert best({"a": sure, "b": wide}).ours.endswith("over b, the least certain of 2")


def test_a_fact_decides_for_all_that_it_is_part_of():
    sure = greater("", "", series(1, 1.01, 1), 0.0)
    for holds, verdict in ((False, FAILS), (True, HOLDS)):
        claim = judge([every("all", "", {"here": sure, "there": fact("", "", "seen", holds)})])[0]
        assert claim.verdict is verdict
    assert every("all", "", {"here": sure, "there": fact("", "", "seen", False)}).ours == (
        "seen, there, the least certain of 2"
    )


def test_what_was_selected_counts_as_tested_with_all_it_was_selected_from():
    claims = [greater("", "", NOISY, 0.0), *(greater("", "", NOISY - 0.02, 0.0) for _ in range(4))]
    assert claims[0].verdict is HOLDS
    assert selected(claims, 0).verdict is OPEN
    assert selected(claims[:1], 0).verdict is HOLDS


def drawn_by_chance(gaps: np.ndarray, seeds: int) -> list[list[Claim]]:
    """Claims of which none is true, about the first seeds of gaps [trials, claims, seeds]: a list for each trial."""
    test = stats.ttest_1samp(gaps[..., :seeds], 0.0, axis=-1)
    return [
        [
            Claim(f"claim {n}", "", "", OPEN, (Outcome(HOLDS if t > 0 else FAILS, p),))
            for n, (t, p) in enumerate(zip(*trial, strict=True))
        ]
        for trial in zip(test.statistic, test.pvalue, strict=True)
    ]


def errors(trials: list[list[Claim]]) -> float:
    """The share of trials in which any claim is decided."""
    return float(np.mean([any(claim.verdict is not OPEN for claim in claims) for claims in trials]))


def test_holm_keeps_the_chance_of_any_wrong_verdict():
    gaps = np.random.default_rng(0).normal(size=(4000, 6, 5))
    found = errors([judge(claims) for claims in drawn_by_chance(gaps, 5)])
    assert 0.03 < found < 0.05 + 3 * (0.05 * 0.95 / 4000) ** 0.5


# --- how many seeds would decide ---


@pytest.mark.parametrize(("effect", "level"), [(1.0, 0.05), (0.5, 0.01), (2.0, 0.005)])
def test_the_seeds_that_would_decide_have_the_power_and_fewer_do_not(effect, level):
    def power(seeds):
        needed = stats.t.ppf(1 - level / 2, seeds - 1)
        return stats.nct.sf(needed, seeds - 1, effect * seeds**0.5)

    seeds = seeds_needed(effect, level)
    assert power(seeds) >= 0.8 > power(seeds - 1)


def test_open_claims_say_how_many_seeds_would_decide_them_at_the_level_of_their_family():
    near = series(0.01, -0.01, 0.02, 0.0, 0.005)
    effect = near.mean() / near.std()
    (alone,) = judge([greater("a", "", near, 0.0)])
    assert (alone.verdict, alone.seeds) == (OPEN, f"about {seeds_needed(effect, 0.05)}")
    among = judge([greater("a", "", near, 0.0), greater("b", "", near * 2 + 1, 0.0)])
    assert [claim.seeds for claim in among] == [f"about {seeds_needed(effect, 0.025)}", ""]
    assert judge([greater("a", "", near - near.mean() + 1e-5, 0.0)])[0].seeds == "more than 1000"
    assert judge([greater("a", "", series(0, 0, 0), 0.0)])[0].seeds == ""
    assert judge([alike("a", "", series(0.0, 0.2, -0.1), 0.0, 0.1)])[0].seeds.startswith("about ")


def test_a_claim_in_several_respects_needs_the_seeds_of_its_least_certain_or_of_its_refutation():
    small, large = series(0.01, -0.01, 0.02, 0.0, 0.005), series(0.02, -0.01, 0.03, 0.005, 0.01)
    both = judge([every("a", "", {"x": greater("", "", small, 0.0), "y": greater("", "", large, 0.0)})])[0]
    assert both.seeds == f"about {seeds_needed(small.mean() / small.std(), 0.025)}"
    against = judge([every("a", "", {"x": greater("", "", small, 0.0), "y": greater("", "", -large, 0.0)})])[0]
    assert against.seeds == f"about {seeds_needed(large.mean() / large.std(), 0.025)}"


# --- many looks ---


def looks(gaps: np.ndarray, first: int = 3, block: int = 2) -> list[list]:
    """Claims about each row of gaps, with the first seeds and then block after block."""
    ends = range(first, gaps.shape[1] + 1, block)
    return [[greater(f"claim {n}", "", series(*row[:end]), 0.0) for n, row in enumerate(gaps)] for end in ends]


def test_looking_again_and_again_keeps_the_chance_of_a_wrong_verdict():
    gaps = np.random.default_rng(1).normal(size=(4000, 2, 40))
    trials = list(zip(*(drawn_by_chance(gaps, seeds) for seeds in range(5, 41, 5)), strict=True))
    assert 0.01 < errors([judge_looks(seen) for seen in trials]) < 0.05
    naive = errors([[claim for claims in seen for claim in judge(claims)] for seen in trials])
    assert naive > 0.12  # what it would be if every look had the whole level


def test_true_differences_are_found_and_stay_found():
    rng = np.random.default_rng(2)
    gaps = rng.normal(1.5, 1.0, size=(1, 23))
    found = [verdicts(judge_looks(looks(gaps)[:n]))[0] for n in range(1, 12)]
    assert found[0] is OPEN
    assert found[-1] is HOLDS
    assert found == sorted(found, key=[OPEN, HOLDS].index)


def test_what_an_early_look_decided_is_kept_with_the_numbers_of_the_last():
    early = looks(np.array([[1.0, 1.01, 1.0, -9.0, 9.0]]))
    assert verdicts(judge(early[-1], 2)) == [OPEN]
    (claim,) = judge_looks(early)
    assert (claim.verdict, claim.seeds) == (HOLDS, "")
    assert "5 seeds" in claim.ours


# --- adding seeds ---


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
            table("", part("", [])).draw,
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
