"""The documentation's Python runs as it stands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("page", ["README.md", "docs/own_method.md"])
def test_every_python_block_of_a_page_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    namespace = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec"), namespace)


def test_the_documented_rule_has_at_most_25_lines():
    block = re.search(r"class WorstFirst.*?return .*?\n", (ROOT / "docs/own_method.md").read_text(), re.DOTALL)
    assert block
    assert block.group().count("\n") <= 25


def test_every_method_is_in_the_readme():
    from mmfl.methods import METHODS

    text = (ROOT / "README.md").read_text()
    assert [name for name in METHODS if f"`{name}`" not in text] == []
