"""The table of faults and attacks in docs/deployment.md: every row names a test that exists."""

import ast
import re

from pages import ROOT

ROW = re.compile(r"^\| (.+) \| (.+) \| `(tests/\S+\.py)::(\w+)` \|$", re.MULTILINE)


def test_every_fault_and_attack_of_the_table_is_tried_by_the_test_that_it_names():
    page = (ROOT / "docs" / "deployment.md").read_text()
    table = page.split("## Tried and survived")[1].split("\n## ")[0]
    rows = ROW.findall(table)
    assert len(rows) == table.count("\n| ") - 1  # without the headings: no row is of another form
    assert len({test for *_, test in rows}) == len(rows) >= 20
    for _, _, file, name in rows:
        functions = {each.name for each in ast.walk(ast.parse((ROOT / file).read_text())) if hasattr(each, "name")}
        assert name in functions, f"{file} has no {name}"
