"""The page that helps to choose a method quotes the results as they are."""

import re

import pytest

from mmfl.methods import METHODS
from pages import ROOT, text_of

PAGE = "docs/choosing.md"
LINK = re.compile(r"\]\(([\w./-]+\.md)")
NUMBER = re.compile(r"[+-]?\d[\d,]*\.\d+")


def rows(page, column):
    """Rows of the first table of a page that has such a column: by method, the cells by column."""
    tables = re.findall(r"((?:^\|.*\|\n)+)", text_of(page), re.MULTILINE)
    for lines in (table.splitlines() for table in tables):
        head, _, *body = ([cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in lines)
        if column in head:
            cells = [dict(zip(head, row, strict=True)) for row in body]
            return {row["method"]: row for row in cells}
    raise AssertionError(f"{page} has no table with the column '{column}'")


QUOTED = rows(PAGE, "three tasks")


@pytest.mark.parametrize("method", QUOTED)
def test_the_main_table_has_the_numbers_of_the_results(method):
    quoted = QUOTED[method]
    three = rows("docs/results/table1-3tasks.md", "ours, relative")[method]
    five = rows("docs/results/table1-5tasks.md", "ours, relative")[method]
    costs = rows("docs/results/table1-costs.md", "trainings")[method]
    assert quoted["three tasks"] == three["ours, relative"]
    assert quoted["five tasks"] == five["ours, relative"]
    for column in ("trainings", "forward passes", "MB down", "MB stored"):
        assert quoted[column] == costs[column]
    entry = METHODS[method]
    assert quoted["server stores"] == {"none": "nothing"}.get(entry.stores, entry.stores)
    required = (
        "train every round" if entry.trains == "all" else {"all": "report their loss"}.get(entry.evaluates, "nothing")
    )
    assert quoted["clients also"].replace("train and send", "train") == required


def passages():
    """Paragraphs, points and rows of the page that quote numbers and say from where."""
    for passage in re.split(r"\n\n|\n(?=- |\|)", text_of(PAGE)):
        pages = [(ROOT / PAGE).parent / link for link in LINK.findall(passage)]
        if pages and NUMBER.search(passage):
            yield passage, "".join(page.read_text() for page in pages)


def test_every_number_is_on_a_page_that_is_linked_beside_it():
    found = [
        (number, passage) for passage, pages in passages() for number in NUMBER.findall(passage) if number not in pages
    ]
    assert found == []
    assert sum(1 for _ in passages()) >= 15
