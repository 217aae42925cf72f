"""Every number quoted in a discussion of the results follows from the stored measurements."""

import re
from functools import cache
from pathlib import Path

import pandas as pd
import pytest

from mmfl.papers import CATALOGUE, pages
from mmfl.papers.measurements import final
from mmfl.papers.seeds import findings
from mmfl.papers.store import Results
from pages import ROOT

STORED = Results(ROOT / "docs" / "results")
DISCUSSIONS = sorted((STORED.folder / "discussion").glob("*.md"))
LINK = re.compile(r"\]\(([\w-]+)\.md\)")
# Decimals, percentages, points and factors; not counts such as those of clients or rounds.
QUOTED = re.compile(r"(?<![\w.-])([+-]?(?:\d[\d,]*)?\.?\d+)(%| points?\b| times\b)?")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def whole(part):
    return STORED.done(part, False)


@cache
def generated(id: str) -> str:
    """What the stored measurements say on a page: all of it but the discussion."""
    made = CATALOGUE[id]
    found = findings(made, STORED, False) if all(map(whole, made.parts(False))) else None
    text = pages.page(made, found, STORED, False)
    return text.replace(pages.discussion(STORED, id), "")


def last(method: str, task: str) -> list[float]:
    """The final accuracy of a task in the five-task column, by seed."""
    frames = STORED.frames(CATALOGUE["table1-5tasks"].parts(False))
    return final(frames["accuracy"]).loc[method][task].tolist()


def highest(method: str, task: str) -> pd.Series:
    """The highest accuracy of a task in any test, by seed."""
    frames = STORED.frames(CATALOGUE["table1-5tasks"].parts(False))
    runs = frames["accuracy"].query("method == @method")
    return runs.groupby("seed")[task].max()


# Numbers that are not on the pages as such, and what they are computed from.
COMPUTED = {
    "table1-5tasks": {
        "0.406": lambda: min(last("mmfl-stalevre", "emnist")),
        "0.644": lambda: sorted(last("mmfl-stalevre", "emnist"))[1],
        "0.658": lambda: max(last("mmfl-stalevre", "emnist")),
        "0.021": lambda: min(last("random", "emnist")),
        "0.079": lambda: highest("random", "emnist").min(),
        "0.606": lambda: max(last("random", "emnist")),
        "0.482": lambda: sorted(last("random", "emnist"))[1],
        "0.158": lambda: min(last("fedvarp", "emnist")),
        "0.401": lambda: max(last("fedvarp", "emnist")),
        "0.538": lambda: max(last("scaffold", "fashion-a")),
        "0.507": lambda: max(last("scaffold", "fashion-b")),
    },
}
# Settings that pages do not print, and numbers of the papers.
GIVEN = {
    "README": {"5%", "80%", "95%"},
    "summary": {"5%", "10 points"},
    "table1-3tasks": {"70%"},  # of the test set, in the published code
    "table1-5tasks": {"30%"},  # of the labels, at each client
    "group-fig2a": {"10 points"},
}


def quotes(text: str):
    """The numbers that a discussion quotes: with decimals or as percentages, points or factors."""
    for number, unit in QUOTED.findall(LINK.sub("", text)):
        if "." in number or unit:
            yield number, unit.strip()


def agrees(number: str, unit: str, known: float) -> bool:
    """Whether a known number, rounded, is the quoted one; percentages and points may be of 1 or of 100, or missing."""
    value, digits = abs(float(number.replace(",", ""))), len(number.partition(".")[2])
    share = unit == "%" or unit.startswith("point")
    candidates = [known, 100 * known, 100 * (1 - known)] if share else [known]
    return any(round(each + 1e-9, digits) == value for each in candidates)


@pytest.mark.parametrize("path", DISCUSSIONS, ids=lambda path: path.stem)
def test_every_number_in_a_discussion_is_recomputed(path: Path):
    text, own = path.read_text(), [path.stem] if path.stem in CATALOGUE else []
    sources = {id for id in [*own, *LINK.findall(text)] if id in CATALOGUE}
    known = {float(number.replace(",", "")) for id in sources for number in NUMBER.findall(generated(id))}
    known |= {abs(compute()) for compute in COMPUTED.get(path.stem, {}).values()}
    wrong = [
        f"{number} {unit}".strip()
        for number, unit in quotes(text)
        if f"{number} {unit}".replace(" %", "%").strip() not in GIVEN.get(path.stem, ())
        and not any(agrees(number, unit, each) for each in known)
    ]
    assert wrong == []


@pytest.mark.parametrize("id", COMPUTED)
def test_numbers_that_pages_do_not_print_are_computed_as_they_are_quoted(id):
    text = (STORED.folder / "discussion" / f"{id}.md").read_text()
    for quoted, compute in COMPUTED[id].items():
        assert quoted in text
        assert f"{compute():.3f}" == quoted


def test_a_number_that_follows_from_nothing_is_noticed():
    found = list(quotes("It ends at .741 (± 0.016), 4.4 points and 96 times above 12 clients; 3.1% [a](b-2.5.md)."))
    assert found == [(".741", ""), ("0.016", ""), ("4.4", "points"), ("96", "times"), ("3.1", "%")]
    assert agrees("4.4", "points", 0.044)
    assert agrees("3.1", "%", 0.969)
    assert not agrees("4.4", "points", 0.045)
    assert not agrees("0.741", "", 0.742)
