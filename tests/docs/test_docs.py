"""The documentation does what it says: its Python and its sessions run, its commands exist, its tables and links are
right."""

import ast
import re
import shlex

import pytest

import pages
import run_pages
from mmfl.allocation import ALLOCATIONS
from mmfl.methods import METHODS, make_method
from pages import PAGES, ROOT, RUNS, SPAN, blocks, commands, follow, known_command, text_of, unknown_options

LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def targets(page):
    """The files that a page links to or shows."""
    return {((ROOT / page).parent / link).resolve() for link in LINK.findall(text_of(page))}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, *RUNS)])
def test_a_page_does_and_prints_what_it_says(page, tmp_path):
    assert len(list(follow(page, tmp_path))) == len(blocks(page, *RUNS))


def test_the_script_that_runs_all_code_tells_what_failed_and_what_was_left_out(tmp_path, monkeypatch, capsys):
    (tmp_path / "good.md").write_text("```python\nprint(6 * 7)\n```\n\n```text\n42\n```\n")
    (tmp_path / "bad.md").write_text("```python\nx = 1\n```\n\n```python\nx.sum()\n```\n")
    (tmp_path / "more.md").write_text("```python\nimport no_such_module\n```\n")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(run_pages, "NEEDS", {"more.md": ["no_such_module"]})
    for name in ("MMFL_CACHE", "MMFL_DEVICE"):  # which the script sets: they are put back after the test
        monkeypatch.setenv(name, "")
    assert run_pages.main(["good.md", "--device", "cpu"]) == 0
    assert run_pages.main(["good.md", "bad.md", "more.md", "--device", "cpu"]) == 1
    said = capsys.readouterr().out
    assert said.count("good.md, block 1 (python): ran in ") == 2
    assert "bad.md, block 1 (python): ran in " in said
    assert "bad.md, block 2 (python): FAILED" in said
    assert "AttributeError" in said
    assert said.endswith("more.md: left out, needs no_such_module\non cpu: 1 failed, 1 left out\nbad.md\n")


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_in_a_block_is_one_that_the_command_line_takes(page):
    for line in commands(page):
        words = shlex.split(line)
        command, rest = known_command(words)
        assert unknown_options(words) == [], line
        if words[1] not in ("--version", "--install-completion", "--show-completion"):  # which are done at once
            command.make_context(line, list(rest))  # refuses what is missing, or of the wrong kind
        for named in re.findall(r"--methods? (\S+)", line):
            assert [make_method(name) for name in named.split(",")], line


@pytest.mark.parametrize("page", [page for page in PAGES if SPAN.search(text_of(page))])
def test_every_command_in_the_text_is_known_with_its_options(page):
    for line in SPAN.findall(text_of(page)):
        assert unknown_options(line.split()) == [], line


def test_every_family_of_methods_has_a_page_with_an_example_and_a_figure():
    families = [page for page in PAGES if page.startswith("docs/methods/") and not page.endswith("README.md")]
    assert len(families) == 11
    for page in families:
        assert blocks(page, "python"), page
        assert (ROOT / page).with_suffix(".png") in targets(page), page


def test_priorities_are_defined_for_every_allocation():
    rows = [line.split(" | ") for line in text_of("docs/methods/priorities.md").splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`([\w-]+)`", row[0])) == sorted(ALLOCATIONS)


def test_links_lead_to_files():
    assert [(page, str(file)) for page in PAGES for file in targets(page) if not file.exists()] == []


def test_every_page_and_figure_is_linked_from_another():
    linked = {file for page in PAGES for file in targets(page) - {(ROOT / page).resolve()}}
    all_pages = [ROOT / page for page in PAGES if page != "README.md"]
    pictures = [*ROOT.glob("docs/**/*.png"), *ROOT.glob("docs/**/*.svg")]
    assert [str(file) for file in [*all_pages, *pictures] if file not in linked] == []


def test_figures_of_the_methods_are_small_and_made_by_one_script():
    figures = sorted((ROOT / "docs/methods").glob("*.png"))
    script = (ROOT / "docs/figures.py").read_text()
    assert [figure.name for figure in figures if figure.stat().st_size > 60_000] == []
    assert [figure.stem for figure in figures if f'"{figure.stem}": {figure.stem},' not in script] == []


def test_documented_rules_with_their_state_have_at_most_25_lines():
    for block in blocks("docs/tutorials/researcher.md", "python"):
        classes = [node for node in ast.parse(block.text).body if isinstance(node, ast.ClassDef)]
        lines = [node.end_lineno - node.lineno + 1 for node in classes]
        together = sum(lines) if not block.file else max(lines)  # rules of a file are several, each without state
        assert together <= 25 if lines else True, [node.name for node in classes]


def test_every_method_is_in_the_readme():
    text = text_of("README.md")
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
    text = text_of("docs/methods/README.md")
    page = re.search(rf"^\| \[`{name}`\]\((\w+\.md)\) \| {re.escape(row)} \|$", text, re.MULTILINE)
    assert page, f"docs/methods/README.md lacks the row: | [`{name}`](PAGE.md) | {row} |"
    assert f"`{name}`" in (ROOT / "docs/methods" / page[1]).read_text()


def test_the_table_of_secure_aggregation_says_which_methods_need_only_sums():
    reasons = {name: make_method(name).needs_single_updates for name in METHODS}
    rows = [f"| `{name}` | {'no: ' + reason if reason else 'yes'} |" for name, reason in reasons.items()]
    assert "\n".join(["| method | sums are enough |", "|---|---|", *rows, ""]) in text_of("docs/privacy.md")
