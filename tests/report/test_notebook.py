"""What a notebook shows: tables, and progress in a real kernel; and the stories in examples, as scripts and cells."""

import re
from pathlib import Path

import pytest

import mmfl
import prompt

EXAMPLES = Path(__file__).parents[2] / "examples"
STORIES = {
    "digits_and_synthetic": ["mmfl-stalevre", "guessed ["],
    "own_models": ["by-loss", "energy guessed"],
    "papers_tasks": ["shakespeare", "the paper's relative", "0.908"],
    "adapters": ["everything", "head", "adapters", "MB sent in a round"],
    "cameras": ["shared", "local", "worst cameras"],
    "text_and_table": ["perplexity", "absolute_error", "worst_tenth", "Return the "],
}


@pytest.fixture(scope="module")
def comparison() -> mmfl.Comparison:
    data = mmfl.data.digits()
    names = ("<img src=x onerror=alert(1)>", "a[/b] & b")
    tasks = [mmfl.Task(name, mmfl.models.LogisticRegression, data) for name in names]
    federation = mmfl.Federation(tasks, 9, capacity=[1, 1, 2])
    return mmfl.compare(federation, ["random", "full"], rounds=3, rate=0.5)


def rows(html: str) -> list[list[str]]:
    """The texts of a table, row by row."""
    return [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]


def test_a_federation_shows_its_tasks_volumes_and_capacities(comparison):
    shown = comparison.runs[0].federation._repr_html_()
    sizes = comparison.runs[0].federation.sizes[:, 1]
    assert rows(shown)[2] == [
        "a[/b] &amp; b",
        "LogisticRegression",
        "digits",
        "1,438",
        "9",
        *(str(number) for number in (sizes.min(), int(sorted(sizes)[4]), sizes.max())),
    ]
    assert "Federation of 9 clients" in shown
    assert "1 (6 clients), 2 (3 clients)" in shown


def test_a_run_shows_each_task_with_the_mean_and_the_costs(comparison):
    run = comparison.of("full")[0]
    shown = run._repr_html_()
    final, loss = run.final(), run.loss.iloc[-1]
    assert rows(shown)[2] == ["a[/b] &amp; b", f"{final.iloc[1]:.3f}", f"{loss.iloc[1]:.3f}", "27", "9 of 9"]
    assert f"mean {final['mean']:.3f}, worst {final['worst']:.3f}" in shown
    assert "18.0 trainings" in shown


def test_a_comparison_shows_its_table(comparison):
    table, shown = comparison.table(), rows(comparison._repr_html_())
    assert shown[0][:2] == ["method", "&lt;img src=x onerror=alert(1)&gt;"]
    assert [row[0] for row in shown[1:]] == ["random", "full"]
    assert shown[1][shown[0].index("of full")] == f"{table.loc['random', 'relative']:.3f}"
    assert "± of mean" not in shown[0]  # there is one seed


def test_tables_escape_names_load_nothing_and_leave_colours_to_the_notebook(comparison):
    for shown in (comparison, comparison.runs[0], comparison.runs[0].federation):
        html = shown._repr_html_()
        assert "<img" not in html
        assert re.search(r"http|src=\"|<script|<link|style=|color", html) is None


def test_training_is_quiet_unless_progress_is_asked_for(capsys):
    task = mmfl.Task("a[/b]", mmfl.models.LogisticRegression, mmfl.data.digits())
    for progress, shown in ((None, False), (False, False), (True, True)):
        mmfl.train(mmfl.Federation([task], 5), "random", rounds=2, rate=0.5, progress=progress)
        assert ("round 2/2  random: a[/b] 0." in capsys.readouterr().out) == shown


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name == "digits_and_synthetic")) for name in STORIES
    ],  # cells below
)
def test_a_story_runs_in_its_quick_form(tmp_path, name):
    program = f"import runpy; runpy.run_path({str(EXAMPLES / name)!r} + '.py', run_name='__main__')"
    done = prompt.mmfl("--quick", cwd=tmp_path, program=program)
    assert done.returncode == 0, done.stderr
    assert [word for word in STORIES[name] if word not in done.stdout] == []


def cells(script: Path):
    """The cells of a script whose cells begin with `# %%`, as a notebook has them."""
    from nbformat import v4

    for cell in re.split(r"^# %%", script.read_text(), flags=re.MULTILINE)[1:]:
        kind, _, text = cell.partition("\n")
        if "markdown" in kind:
            yield v4.new_markdown_cell(re.sub(r"^# ?", "", text.strip(), flags=re.MULTILINE))
        else:
            yield v4.new_code_cell(text.strip())


def test_the_cells_of_a_story_run_in_a_kernel_and_show_tables_and_progress(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    from nbformat import v4

    monkeypatch.setenv("MMFL_QUICK", "1")
    book = v4.new_notebook(cells=list(cells(EXAMPLES / "digits_and_synthetic.py")))
    nbclient.NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        output["data"]["text/html"]
        for cell in book.cells
        for output in cell.get("outputs", ())
        if "text/html" in output.get("data", {})
    ]
    federation, progress, comparison, run, loaded = shown
    assert "Federation of 40 clients" in federation
    assert re.search(r"^<pre.*mmfl-stalevre.*8/8", progress, re.DOTALL)
    assert rows(comparison)[4][0] == "full"
    assert "mmfl-lvr, seed 0, 8 rounds" in run
    assert loaded == comparison
