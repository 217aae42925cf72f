"""Verdicts on claims that are tested together: many comparisons on a page, several looks at a growing number of seeds.

The claims of a paper on one page are a family, and our own questions there another: the chance that any of a family is
decided wrongly is 5% at most (Holm's method on the p values of all its tests). Where seeds are added until claims are
decided, the k-th look tests at the level 5% / (k (k + 1)) instead (alpha spending). These levels add up to 5% over any
number of looks, so the chance that any of them decides wrongly is 5% at most, however long one goes on (Bonferroni).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mmfl.papers.evidence import LEVEL, holm, show_p, verdict_of
from mmfl.papers.reproduction import OWN, Claim, StatisticalTest, Verdict

_POWER = 0.8
_MOST = 1000  # seeds, of which none is tried any more


def judge(claims: Sequence[Claim], look: int | None = None) -> list[Claim]:
    """The claims with verdicts that hold together; at the k-th look, if more seeds are added until they are decided."""
    share = 1 if look is None else look * (look + 1)
    judged = [_at_look(claim, share) for claim in claims]
    for own in (False, True):
        family = [n for n, claim in enumerate(claims) if (claim.paper == OWN) is own and claim.outcomes]
        tests = list(dict.fromkeys(outcome for n in family for outcome in judged[n].outcomes))  # each once
        adjusted = dict(zip(tests, holm([outcome.p for outcome in tests]), strict=True))
        for n in family:
            outcomes = [replace(outcome, p=adjusted[outcome]) for outcome in judged[n].outcomes]
            judged[n] = _with_verdict(judged[n], outcomes, LEVEL / share / len(tests))
    return judged


def _at_look(claim: Claim, share: int) -> Claim:
    """The claim with p values that use only this look's share of the chance of error."""
    return replace(claim, outcomes=tuple(replace(each, p=min(1.0, share * each.p)) for each in claim.outcomes))


def judge_looks(looks: Sequence[Sequence[Claim]]) -> list[Claim]:
    """The claims at the last of several looks, each with the verdict of the first look that decided it."""
    judged = [judge(claims, look) for look, claims in enumerate(looks, 1)]
    decided = {claim.text: claim.verdict for claims in judged[::-1] for claim in claims if not _open(claim)}
    return [
        replace(claim, verdict=decided[claim.text], seeds="") if claim.text in decided and claim.outcomes else claim
        for claim in judged[-1]
    ]


def _open(claim: Claim) -> bool:
    return claim.verdict is Verdict.OPEN


def _with_verdict(claim: Claim, adjusted: Sequence[StatisticalTest], level: float) -> Claim:
    verdict = verdict_of(adjusted)
    refuting = [outcome.p for outcome in adjusted if outcome.towards is Verdict.FAILS]
    deciding = min(refuting) if refuting else max(outcome.p for outcome in adjusted)
    made = any(np.isfinite(outcome.effect) for outcome in adjusted) and deciding > 0
    shown = f"{claim.ours}, {show_p(deciding)}" if made else claim.ours
    seeds = needed_text(claim.outcomes, level) if verdict is Verdict.OPEN else ""
    return replace(claim, verdict=verdict, ours=shown, seeds=seeds)


def needed_text(outcomes: Sequence[StatisticalTest], level: float) -> str:
    """How many seeds would decide a claim; nothing where one seed or no difference gives no idea."""
    refuting = [outcome.effect for outcome in outcomes if outcome.towards is Verdict.FAILS]
    effect = max(refuting) if refuting else min(outcome.effect for outcome in outcomes)
    if not np.isfinite(effect) or effect == 0:
        return ""
    seeds = seeds_needed(effect, level)
    return f"more than {_MOST}" if seeds > _MOST else f"about {seeds}"


def seeds_needed(effect: float, level: float, power: float = _POWER) -> int:
    """Seeds with which a t test at a level finds a difference of so many standard deviations, with this power.

    >>> seeds_needed(1.0, 0.05)
    10
    """
    from scipy import stats  # takes a second to import

    def enough(seeds: int) -> bool:
        needed = stats.t.ppf(1 - level / 2, seeds - 1)
        return bool(stats.nct.sf(needed, seeds - 1, effect * np.sqrt(seeds)) >= power)

    few, many = 1, 2
    while many <= _MOST and not enough(many):
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if enough(middle) else (middle, many)
    return many
