"""What all tables and figures share: evidence, measurements, the results folder, the pages and the command."""

import dataclasses
import re
import textwrap
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from scipy import stats
from shared import FAILS, HOLDS, OPEN, quick
from tiny import SCORES, TINY, part, table

import mmfl
import prompt
from conftest import refused, toy_task
from mmfl.papers import CATALOGUE, pages, reproduce
from mmfl.papers.evidence import alike, fact, greater, holm, p_value, spread
from mmfl.papers.measurements import Watch, accuracy, by_round, final, mean_costs, tidy
from mmfl.papers.reproduction import ADDED, PAPERS, Findings, PaperTrainer
from mmfl.papers.seeds import findings
from mmfl.papers.store import Results
from mmfl.report.differences import difference

NOTHING = PaperTrainer()


# --- evidence ---


def series(*values: float) -> pd.Series:
    return pd.Series(values, dtype=float)


def test_the_interval_is_that_of_a_paired_t_test():
    ours, theirs = series(0.71, 0.64, 0.83, 0.62), series(0.60, 0.61, 0.70, 0.66)
    gap = difference(ours, theirs)
    exact = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (gap.mean - gap.half, gap.mean + gap.half) == pytest.approx((exact.low, exact.high))


def test_pairs_are_matched_by_seed_and_incomplete_ones_left_out():
    ours = pd.Series([0.5, np.nan, 0.9, 0.7], index=[0, 1, 2, 3])
    theirs = pd.Series([0.6, 0.4, 0.3, 0.2], index=[3, 0, 1, 5])
    gap = difference(ours, theirs)
    assert gap.pairs == 2
    assert gap.mean == pytest.approx(0.1)


def test_one_seed_never_decides_and_none_says_so():
    for claim in (greater("a", "", series(9), series(1)), alike("a", "", series(1), series(1), 0.5)):
        assert claim.verdict is OPEN
        assert "one seed" in claim.ours
    nothing = greater("a", "", series(np.nan), series(1))
    assert (nothing.verdict, nothing.ours) == (OPEN, "not measured")


@pytest.mark.parametrize(
    ("gaps", "margin", "verdict"),
    [
        ((0.10, 0.11, 0.12), 0.0, HOLDS),
        ((-0.10, -0.11, -0.12), 0.0, FAILS),
        ((0.3, -0.1, 0.1), 0.0, OPEN),
        ((0.10, 0.11, 0.12), 0.2, FAILS),
        ((0.10, 0.11, 0.12), 0.1, OPEN),
        ((0.0, 0.0, 0.0), 0.0, OPEN),
    ],
)
def test_greater_is_decided_where_the_interval_lies_on_one_side_of_the_margin(gaps, margin, verdict):
    assert greater("a", "", series(*gaps) + 0.5, series(0.5, 0.5, 0.5), margin).verdict is verdict


@pytest.mark.parametrize(
    ("gaps", "verdict"), [((0.02, 0.03, 0.02), HOLDS), ((-0.2, -0.22, -0.21), FAILS), ((0.0, 0.1, 0.3), OPEN)]
)
def test_alike_is_decided_where_the_interval_lies_within_or_beyond_the_tolerance(gaps, verdict):
    assert alike("a", "", series(*gaps), series(0, 0, 0), 0.1).verdict is verdict


def test_adjusted_p_values_are_those_of_holm():
    given = [0.01, 0.04, 0.03, 0.005]
    assert holm(given) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.5]) == [1.0, 1.0]
    assert holm([]) == []
    ours, theirs = series(0.71, 0.64, 0.83, 0.62), series(0.60, 0.61, 0.70, 0.66)
    assert p_value(ours, theirs) == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)
    assert [p_value(ours, ours), p_value(ours, ours - 1), p_value(series(1), 0.0)] == [1.0, 0.0, 1.0]


def test_a_fact_is_decided_and_a_spread_needs_two():
    assert [fact("a", "", "", holds).verdict for holds in (True, False)] == [HOLDS, FAILS]
    assert [spread([]), spread([0.5, np.nan]), spread([1, 3], 1)] == ["—", "0.500", "2.0 ± 1.4"]


# --- measurements ---


@pytest.fixture(scope="module")
def compared():
    """Two methods, two seeds, five rounds tested at 2, 4 and 5; and the rounds that were watched."""
    federation = mmfl.Federation([toy_task("a"), toy_task("b")], clients=6)
    watch = Watch(lambda state: state.round)
    comparison = NOTHING.compare(federation, ["random", "full"], 5, 0.5, 2, watch=watch, evaluate_every=2)
    return comparison, watch


def test_accuracy_has_a_row_per_method_seed_and_tested_round(compared):
    frame = accuracy(compared[0])
    assert list(frame) == ["method", "seed", "round", "a", "b", "mean"]
    keys = [(m, s, t) for m in ("random", "full") for s in (0, 1) for t in (2, 4, 5)]
    assert list(frame[["method", "seed", "round"]].itertuples(index=False, name=None)) == keys
    assert frame["mean"].to_numpy() == pytest.approx(frame[["a", "b"]].mean(axis=1).to_numpy())
    run = compared[0].of("full")[1]
    row = frame.query("method == 'full' and seed == 1 and round == 4").iloc[0]
    assert row["a"] == run.accuracy.loc[4, "a"]


def test_final_averages_the_last_rounds_and_by_round_lays_seeds_side_by_side(compared):
    frame = accuracy(compared[0])
    last = final(frame, rounds=2)
    assert list(last.index) == [("full", 0), ("full", 1), ("random", 0), ("random", 1)]
    rows = frame[(frame["method"] == "random") & (frame["seed"] == 1) & (frame["round"] >= 4)]
    assert len(rows) == 2
    assert last.loc[("random", 1), "b"] == pytest.approx(rows["b"].mean())
    side = by_round(frame, "b", "random")
    assert (list(side.index), list(side)) == ([2, 4, 5], [0, 1])
    assert side.loc[[4, 5], 1].to_numpy() == pytest.approx(rows["b"].to_numpy())


def test_step_sizes_are_of_every_round_and_costs_of_the_mean_round(compared):
    sizes = tidy(compared[0], lambda run: run.step_size)
    assert len(sizes) == 4 * 5
    assert sizes[sizes["method"] == "full"][["a", "b"]].to_numpy() == pytest.approx(1.0)
    costs = mean_costs(compared[0]).set_index(["method", "seed"])
    assert costs.loc[("full", 0), "trainings"] == 12
    drawn = [record.cost.trainings for record in compared[0].of("random")[1].records]
    assert costs.loc[("random", 1), "trainings"] == pytest.approx(np.mean(drawn))


def test_a_watch_looks_at_every_replica_before_and_after_every_round(compared):
    assert compared[1].seen == [[t] * 4 for t in range(6)]


# --- the results folder ---


@pytest.fixture
def results(tmp_path) -> Results:
    """Results of which the part `one` was run in its quick form."""
    made = Results(tmp_path)
    made.run(part("one", []), True, NOTHING)
    return made


def test_a_part_is_run_once_and_is_done_only_in_the_form_asked_for(tmp_path, monkeypatch):
    results, calls, said = Results(tmp_path), [], []
    one = part("group/one", calls)
    clock = SimpleNamespace(monotonic=lambda: 100 + 12.34 * len(calls))  # a call takes 12.34 seconds
    monkeypatch.setattr("mmfl.papers.store.time", clock)
    for form in (True, True, False):
        reproduce.train([one], results, form, NOTHING, said.append)
        assert (results.done(one, True), results.done(one, False)) == (form, not form)
    assert calls == ["group/one"] * 2
    assert said[:2] == ["group/one: 7 rounds, 3 seeds", "group/one: done before"]
    about = results.about(one)
    assert (about.part, about.quick, about.rounds, about.seeds) == ("group/one", False, 7, [0, 1, 2])
    assert about.commit
    assert about.seconds == 12.3


def stop():
    raise KeyboardInterrupt


class Torn(pd.DataFrame):
    def to_csv(self, *args, **options):
        stop()


def test_a_part_broken_off_while_training_or_writing_counts_as_not_run(tmp_path):
    results = Results(tmp_path)
    for frames in (stop, lambda: {"scores": SCORES, "torn": Torn()}):
        broken = part("one", [], frames)
        with pytest.raises(KeyboardInterrupt):
            results.run(broken, True, NOTHING)
        assert not results.done(broken, True)
    assert (tmp_path / "data" / "one" / "scores.csv.gz").exists()
    assert list(reproduce.render([table("t", broken)], results, True)) == []


def test_a_part_broken_off_when_run_again_keeps_what_it_had(results):
    with pytest.raises(KeyboardInterrupt):
        results.run(part("one", [], stop), False, NOTHING)
    assert results.done(part("one", []), True)


def test_frames_come_back_and_those_of_one_name_lie_below_one_another(tmp_path):
    results = Results(tmp_path)
    extra = pd.DataFrame({"method": ["full"], "value": [1 / 3]})
    one, two = part("one", []), part("two", [], lambda: {"scores": SCORES + 1, "extra": extra})
    for each in (one, two):
        results.run(each, True, NOTHING)
    frames = results.frames([one, two])
    assert set(frames) == {"scores", "extra"}
    pd.testing.assert_frame_equal(frames["scores"], pd.concat([SCORES, SCORES + 1], ignore_index=True))
    assert frames["extra"].to_dict("list") == {"method": ["full"], "value": [0.33333]}


def test_a_part_run_again_leaves_nothing_of_before(results):
    results.run(part("one", [], lambda: {"new": SCORES}), False, NOTHING)
    assert set(results.frames([part("one", [])])) == {"new"}


def test_equal_measurements_give_equal_bytes(results):
    results.run(part("two", []), True, NOTHING)
    first, second = (results.folder / "data" / name / "scores.csv.gz" for name in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("about.json", b'{"part": "one"'),
        ("about.json", b'{"part": "one"}'),
        ("about.json", b"[1]"),
        ("scores.csv.gz", b"no archive"),
        ("scores.csv.gz", None),
    ],
)
def test_damaged_files_are_named_with_what_to_do(results, name, content):
    path = results.folder / "data" / "one" / name
    path.write_bytes(path.read_bytes()[:30] if content is None else content)
    with refused(str(path), "cannot be read", "run the part again"):
        list(reproduce.render([table("t", part("one", []))], results, True))


def test_a_folder_that_cannot_be_written_is_refused_before_training(tmp_path):
    (tmp_path / "file").touch()
    calls = []
    with refused("results folder", "file", "cannot be written"):
        Results(tmp_path / "file").run(part("one", calls), True, NOTHING)
    assert calls == []


# --- pages ---


def test_a_page_has_numbers_claims_and_how_it_was_run(results):
    ((_, findings),) = reproduce.render([table("t", part("one", []))], results, True)
    text = (results.folder / "t.md").read_text()
    assert findings.claims[0].verdict is HOLDS
    assert "| ours\\|theirs | 3 |" in text
    assert f"| ours ahead | 0.1 | {findings.claims[0].ours} | holds |" in text
    assert "A note." in text
    assert "`mmfl reproduce t --quick`" in text
    assert re.search(r"\| one \(quick\) \| 7 \| 0 to 2 \| .* \| 0 s \| mmfl ", text)
    assert "![The table t](t.png)" in text
    assert (results.folder / "t.png").read_bytes().startswith(b"\x89PNG")
    assert "## Discussion" not in text


def test_discussions_become_a_part_of_their_pages(results):
    folder = results.folder / "discussion"
    folder.mkdir()
    (folder / "t.md").write_text("\nWhy it is so.\n\n")
    (folder / "README.md").write_text("What to know first.\n")
    (folder / "summary.md").write_text("In short.\n")
    made = table("t", part("one", []))
    list(reproduce.render([made], results, True))
    assert "## Discussion\n\nWhy it is so.\n\n## How" in (results.folder / "t.md").read_text()
    index = pages.index({"t": made}, results, True).read_text()
    assert index.startswith(
        "# Results\n\nIn short.\n\n| claims of | hold | do not hold | not decided | our own questions |"
    )
    assert index.index("What to know first.") < index.index("## ")


def test_a_page_of_which_parts_are_missing_says_so_and_has_no_numbers(results):
    (results.folder / "discussion").mkdir()
    (results.folder / "discussion" / "u.md").write_text("Why it is so.\n")
    whole, half = table("t", part("one", [])), table("u", part("one", []), part("two", []))
    assert [each.id for each, _ in reproduce.render([whole, half], results, True)] == ["t"]
    text = (results.folder / "u.md").read_text()
    assert "**Not run in full yet**: 1 of 2 parts have been run" in text
    assert "Missing: `two`." in text
    assert "Why it is so." in text
    assert "| one (quick) | 7 |" in text
    assert not [words for words in ("## Numbers", "## Claims", ".png") if words in text]
    assert not (results.folder / "u.png").exists()
    assert list(reproduce.render([whole], results, False)) == []
    assert "0 of 1 parts have been run" in (results.folder / "t.md").read_text()


def test_the_index_groups_claims_by_paper_in_the_papers_order(results):
    one = part("one", [])
    made = [
        table("late", one, paper="group"),
        table("quiet", one, paper="group", find=lambda frames: Findings(frames["scores"], [])),
        table("early", one, paper="mfa"),
        table("absent", part("two", []), paper="mfa"),
    ]
    text = pages.index({each.id: each for each in made}, results, True).read_text()
    headings = [f"## {PAPERS[paper]}" for paper in ("mfa", "group")]
    places = [text.index(word) for word in (headings[0], "(early.md)", headings[1], "(late.md)")]
    assert places == sorted(places)
    assert "Without a claim: [The table quiet](quiet.md)." in text
    assert "**Not run in full yet:** [absent](absent.md) (0 of 1 parts)." in text
    assert PAPERS["ucb"] not in text


def test_seeds_are_written_as_a_range_where_they_are_one(results):
    about = results.about(part("one", []))
    lines = pages.runs_table([dataclasses.replace(about, seeds=seeds) for seeds in ([3, 4, 5], [0, 1], [2], [0, 2, 5])])
    assert lines["seeds"].tolist() == ["3 to 5", "0, 1", "2", "0, 2, 5"]


STORED = Results(Path(__file__).parents[2] / "docs" / "results")


@cache
def stored_frames(id):
    return STORED.frames([part for part in CATALOGUE[id].parts(False) if STORED.done(part, False)])


RENDERED = [id for id, each in CATALOGUE.items() if all(STORED.done(part, False) for part in each.parts(False))]


def test_everything_has_a_page_and_the_index_lists_what_was_not_run_in_full():
    assert {path.stem for path in STORED.folder.glob("*.md")} == {*CATALOGUE, "README"}
    index = (STORED.folder / "README.md").read_text()
    listed = re.findall(r"\[([\w-]+)\]\([\w-]+\.md\) \(\d+ of \d+ parts\)", index)
    assert listed == [id for id in CATALOGUE if id not in RENDERED]


@pytest.mark.parametrize("id", CATALOGUE)
def test_stored_measurements_give_the_pages_of_the_documentation(id):
    found = findings(CATALOGUE[id], STORED, False) if id in RENDERED else None
    assert pages.page(CATALOGUE[id], found, STORED, False) == (STORED.folder / f"{id}.md").read_text()
    if found:
        pyplot.close(CATALOGUE[id].draw(stored_frames(id)))


def test_the_index_is_that_of_the_stored_measurements(tmp_path):
    copy = Results(tmp_path)
    for name in ("data", "discussion"):
        (tmp_path / name).symlink_to(STORED.folder / name)
    assert pages.index(CATALOGUE, copy, False).read_text() == (STORED.folder / "README.md").read_text()


def test_the_summary_at_the_top_fits_on_a_screen_and_speaks_of_five_papers():
    top = (STORED.folder / "README.md").read_text().partition("**How to read it.**")[0]
    lines = [piece for line in top.splitlines() for piece in textwrap.wrap(line, 120) or [""]]
    assert len(lines) <= 45
    assert all(name.partition(",")[0] in top for paper, name in PAPERS.items() if paper != "forecast")
    assert all(words in top for words in ("Holds", "Does not hold", "Open"))


# Claims about what does not vary from seed to seed, or about the mean of all runs.
FACTS = (
    "F* and gap(0)",
    "the bound holds",
    "as measured",
    "High for",
    "most of the time",
    "equally many",
    "no seed",
    "not drawn",
    "not eligible",
)


@pytest.mark.parametrize("id", RENDERED)
def test_a_single_seed_decides_nothing_but_facts_and_can_be_drawn(id):
    frames = stored_frames(id).items()
    one = {name: frame[frame["seed"] == frame["seed"].min()] if "seed" in frame else frame for name, frame in frames}
    claims = [each for each in CATALOGUE[id].find(one).claims if not any(words in each.text for words in FACTS)]
    assert {claim.verdict for claim in claims} <= {OPEN}
    assert all("seeds" not in claim.ours for claim in claims)
    pyplot.close(CATALOGUE[id].draw(one))


def test_the_full_forms_are_those_that_were_run():
    parts = reproduce.parts_of(list(CATALOGUE.values()), False)
    run = {part.name: about for part in parts if (about := STORED.about(part))}
    assert {part.name: (part.rounds, list(part.seeds)) for part in parts if part.name in run} == {
        name: (about.rounds, about.seeds) for name, about in run.items()
    }
    stored = {str(path.parent.relative_to(STORED.folder / "data")) for path in STORED.folder.rglob("about.json")}
    assert {name for name in stored if not name.rpartition("/")[2].startswith(ADDED)} == set(run)


@pytest.mark.slow
@pytest.mark.parametrize("id", CATALOGUE)
def test_quick_forms_write_whole_pages_with_pictures_from_little_data(id, tmp_path_factory):
    results, _ = quick(tmp_path_factory, id)
    assert (results.folder / f"{id}.png").stat().st_size > 3_000
    assert (results.folder / f"{id}.md").exists()
    parts = [results.folder / "data" / part.name for part in CATALOGUE[id].parts(True)]
    assert sum(path.stat().st_size for place in parts for path in place.glob("*.csv.gz")) < 40_000


def test_parts_of_the_catalogue_with_one_name_are_the_same():
    for form in (True, False):
        parts = [part for each in CATALOGUE.values() for part in each.parts(form)]
        known = {part.name: (part.rounds, list(part.seeds)) for part in parts}
        assert all(known[part.name] == (part.rounds, list(part.seeds)) for part in parts)


# --- from names to pages ---


def test_parts_are_chosen_by_pattern():
    made = [table("t", part("lvr/a", []), part("lvr/b", []), part("group/a", []))]
    assert [each.name for each in reproduce.parts_of(made, True, "lvr/*")] == ["lvr/a", "lvr/b"]


def test_a_part_of_several_tables_is_run_once(tmp_path):
    calls = []
    made = [table("t", part("shared", calls), part("own", calls)), table("u", part("shared", calls))]
    results = Results(tmp_path)
    reproduce.train(reproduce.parts_of(made, True), results, True, NOTHING, lambda text: None)
    assert sorted(calls) == ["own", "shared"]
    rendered = {each.id: len(findings.claims) for each, findings in reproduce.render(made, results, True)}
    assert rendered == {"t": 1, "u": 1}
    assert len(results.frames(made[0].parts(True))["scores"]) == 6


def test_several_listeners_hear_of_a_comparison():
    first, second = (Watch(lambda state: state.round) for _ in range(2))
    federation = mmfl.Federation([toy_task()], clients=4)
    PaperTrainer("cpu", first).compare(federation, ["full"], 2, 1.0, [5], watch=second, evaluate_every=2)
    assert first.seen == second.seen == [[0], [1], [2]]


# --- through the front door ---

# The command with one more table in its catalogue.
PROGRAM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from tiny import TINY
from mmfl.cli import main
from mmfl.papers import CATALOGUE
CATALOGUE[TINY.id] = TINY
main()
"""


@pytest.fixture
def answer(answer, tmp_path, monkeypatch):
    """Asks `mmfl reproduce` with that table too."""
    monkeypatch.setitem(CATALOGUE, TINY.id, TINY)
    monkeypatch.chdir(tmp_path)
    return partial(answer, "reproduce")


def test_a_table_is_reproduced_by_name(tmp_path):
    done = prompt.mmfl("reproduce", "tiny-table", "--quick", cwd=tmp_path, program=PROGRAM)
    assert done.returncode == 0, done.stderr
    assert all(words in done.stdout for words in ("tiny/a: 7 rounds, 3 seeds", "ours|theirs", "holds"))
    made = tmp_path / "results-quick"
    measured = {"data/tiny/a/about.json", "data/tiny/a/scores.csv.gz"}
    pages = {"README.md", "tiny-table.md", "tiny-table.png"}
    assert {str(path.relative_to(made)) for path in made.rglob("*.*")} == measured | pages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: reproduce: nothing was named; expected ids, --all or --list."),
        (
            ["tiny-table", "--redraw", "--out", "empty"],
            "error: results folder 'empty' has none of these yet; run without --redraw.",
        ),
        (
            ["tiny-table", "--quick", "--out", "file"],
            "error: results folder 'file' cannot be written: Not a directory.",
        ),
        (["tiny-tabel"], "error: unknown table or figure 'tiny-tabel': did you mean 'tiny-table'?"),
        (["tiny-table", "--part", "tiny/b"], "error: no part matches 'tiny/b': did you mean 'tiny/a'?"),
        (["tiny-table", "--max-seeds", "9"], "error: reproduce: --max-seeds goes with --until-decided."),
        (
            ["tiny-table", "--until-decided", "--redraw"],
            "error: reproduce: --until-decided trains all parts; it goes with neither --redraw nor --part.",
        ),
        (
            ["tiny-table", "--until-decided", "--max-seeds", "2"],
            "error: reproduce: --max-seeds is 2, but tiny-table has 3 seeds to begin with.",
        ),
    ],
)
def test_mistakes_end_with_code_2_and_one_line_and_leave_nothing_behind(answer, tmp_path, arguments, message):
    (tmp_path / "file").touch()
    code, _, errors = answer(*arguments)
    assert (code, errors) == (2, f"{message}\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_list_names_every_table_and_figure(answer):
    code, output, _ = answer("--list")
    assert code == 0
    assert all(name in output for name in (*CATALOGUE, "The table tiny-table", "Bhuyan & Moharir 2022"))


def test_a_table_of_which_a_part_is_missing_says_so(answer, tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "half", table("half", part("half/a", []), part("half/b", [])))
    code, output, _ = answer("half", "--part", "half/a", "--out", "here")
    assert code == 0
    assert "half: not run in full yet; its page says what is missing" in output
    assert "(half.md) (1 of 2 parts)" in (tmp_path / "here" / "README.md").read_text()
    assert "Missing: `half/b`." in (tmp_path / "here" / "half.md").read_text()


def test_seeds_are_added_through_the_command_until_all_is_decided(answer):
    code, output, _ = answer("tiny-table", "--quick", "--until-decided")
    assert code == 0
    assert "tiny-table: 3 seeds, 0 of 1 claims not decided" in output


def test_results_are_drawn_again_without_training(answer, tmp_path):
    assert answer("tiny-table", "--quick", "--out", "here")[0] == 0
    (tmp_path / "here" / "tiny-table.md").unlink()
    code, output, _ = answer("tiny-table", "--quick", "--redraw", "--out", "here")
    assert code == 0
    assert "rounds" not in output
    assert (tmp_path / "here" / "tiny-table.md").exists()
