"""The documentation's Python runs as it stands, prints what it says, and its tables and links are right."""

import ast
import re
from pathlib import Path

import pytest

from mmfl.methods import METHODS, make_method

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]
PAGES = [page for page in PAGES if "/discussion/" not in page]  # those are parts of the pages beside them
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<output>.*?)```)?", re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)\)")


def blocks(page):
    return list(BLOCK.finditer((ROOT / page).read_text()))


def targets(page):
    """The files that a page links to or shows."""
    return {((ROOT / page).parent / link).resolve() for link in LINK.findall((ROOT / page).read_text())}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)])
def test_every_python_block_of_a_page_runs_and_prints_what_is_shown(page, capsys):
    namespace = {"__name__": "page"}
    for block in blocks(page):
        exec(compile(block["code"], page, "exec"), namespace)
        printed = capsys.readouterr().out
        assert block["output"] in (None, printed)


def test_every_family_of_methods_has_a_page_with_an_example_and_a_figure():
    families = [page for page in PAGES if page.startswith("docs/methods/") and not page.endswith("README.md")]
    assert len(families) == 7
    for page in families:
        assert blocks(page), page
        assert (ROOT / page).with_suffix(".png") in targets(page), page


def test_links_lead_to_files():
    assert [(page, str(file)) for page in PAGES for file in targets(page) if not file.exists()] == []


def test_every_page_and_figure_is_linked_from_another():
    linked = {file for page in PAGES for file in targets(page) - {(ROOT / page).resolve()}}
    pages = [ROOT / page for page in PAGES if page != "README.md"]
    assert [str(file) for file in [*pages, *ROOT.glob("docs/**/*.png")] if file not in linked] == []


def test_figures_of_the_methods_are_small_and_made_by_one_script():
    figures = sorted((ROOT / "docs/methods").glob("*.png"))
    script = (ROOT / "docs/figures.py").read_text()
    assert [figure.name for figure in figures if figure.stat().st_size > 60_000] == []
    assert [figure.stem for figure in figures if f'"{figure.stem}": {figure.stem},' not in script] == []


def test_documented_rules_with_their_state_have_at_most_25_lines():
    for block in blocks("docs/own_method.md"):
        classes = [node for node in ast.parse(block["code"]).body if isinstance(node, ast.ClassDef)]
        assert sum(node.end_lineno - node.lineno + 1 for node in classes) <= 25, [node.name for node in classes]


def test_every_method_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    assert [name for name in METHODS if f"`{name}`" not in text] == []


def described(rule):
    """A part of a method by its class, what it wraps, and its draw where that is not the usual one."""
    inner, draw = getattr(rule, "inner", None), getattr(rule, "draw", None)
    name = type(rule).__name__ + (f"({described(inner)})" if inner else "")
    return name if draw is None or draw.__name__ == "independent" else f"{name}, {draw.__name__}"


@pytest.mark.parametrize("name", METHODS)
def test_the_table_of_methods_says_what_the_package_says(name):
    entry, method = METHODS[name], make_method(name)
    parts = " x ".join(described(part) for part in (method.allocation, method.local, method.aggregation))
    row = " | ".join([parts, entry.paper, entry.trains, entry.evaluates, entry.stores])
    text = (ROOT / "docs/methods/README.md").read_text()
    page = re.search(rf"^\| \[`{name}`\]\((\w+\.md)\) \| {re.escape(row)} \|$", text, re.MULTILINE)
    assert page, f"docs/methods/README.md lacks the row: | [`{name}`](PAGE.md) | {row} |"
    assert f"`{name}`" in (ROOT / "docs/methods" / page[1]).read_text()
