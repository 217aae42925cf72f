"""Verdicts on claims that are tested together: many on a page, or again and again with more seeds."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from shared import FAILS, HOLDS, OPEN

from mmfl.papers.evidence import above_each, alike, choose, every, fact, greater, greater_than_each, holm
from mmfl.papers.families import judge, judge_looks, seeds_needed
from mmfl.papers.reproduction import OWN, Claim, StatisticalTest

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
    assert choose(claims, 0).verdict is OPEN
    assert choose(claims[:1], 0).verdict is HOLDS


def drawn_by_chance(gaps: np.ndarray, seeds: int) -> list[list[Claim]]:
    """Claims of which none is true, about the first seeds of gaps [trials, claims, seeds]: a list for each trial."""
    test = stats.ttest_1samp(gaps[..., :seeds], 0.0, axis=-1)
    return [
        [
            Claim(f"claim {n}", "", "", OPEN, (StatisticalTest(HOLDS if t > 0 else FAILS, p),))
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
