"""The report: one page with every figure in it, that fetches nothing and shows names as they are; and its exports."""

import base64
import json
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import mmfl
import prompt
from conftest import refused, toy_task
from mmfl.record import Cost, Drawn, RoundRecord, TaskRecord
from mmfl.report import tables
from mmfl.report.exports import export, formats_of
from mmfl.report.figure import Figure
from mmfl.report.figures import FIGURES, figures
from mmfl.report.page import page, place
from mmfl.report.palette import ink, luminance, shade
from mmfl.report.sources import Source, combine_sources, list_differences, load_sources
from mmfl.runs.directory import RunDirectory
from mmfl.runs.results import Comparison, Run, load

SCRIPT = "<script>alert(1)</script>"
ONLY_WITH_AVERAGES = "average"
ONLY_WITH_DEVICES = ("seconds", "timeline", "utilisation")
ONLY_WITH_METRICS = ("metrics", "clients", "client_distribution", "confusion")  # several, or of clients
METHODS = ["random", "mmfl-stalevre", "mmfl-group", "full"]


def federation(seed: int = 0) -> mmfl.Federation:
    tasks = [toy_task(SCRIPT, lr=0.3), toy_task("dollars $x_{", classes=3)]
    return mmfl.Federation(tasks, clients=12, partition=mmfl.partition.labels(0.5), seed=seed)


def compare(directory: Path, methods=METHODS, **options) -> Comparison:
    settings = {"rounds": 6, "rate": 0.5, "seeds": 3, "diagnose": True, "directory": directory}
    return mmfl.compare(federation, methods, **{**settings, **options})


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A run directory with everything that a simulation can show, and its report and exports."""
    folder = tmp_path_factory.mktemp("report")
    compare(folder / "run")
    done = mmfl_report("run", "--export", "png,csv, Parquet", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("files in run/report")
    return folder / "run"


def mmfl_report(*arguments: str, cwd: Path):
    return prompt.mmfl("report", *arguments, cwd=cwd)


class Page(HTMLParser):
    """What is in a page: addresses, text by element, and the figures as plotly gets them."""

    def __init__(self, text: str):
        super().__init__()
        self.addresses, self.scripts, self.words = [], [], {}
        self.specs, self.sections, self.open = {}, {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        told = dict(attributes)
        self.addresses += [(tag, value) for name, value in attributes if name in ("src", "href", "srcset", "action")]
        self.open.append((tag, told))
        if tag == "script":
            self.scripts.append(told)
        if tag == "section":
            self.sections[told["id"]] = []
        if "data-spec" in told:
            list(self.sections.values())[-1].append(told["data-spec"])

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if not self.open:
            return
        tag, told = self.open[-1]
        if tag == "script" and told.get("type") == "application/json":
            self.specs[told["id"]] = json.loads(data)
        elif tag not in ("script", "style"):
            self.words.setdefault(tag, []).append(data)

    def traces(self, figure: str) -> list[dict]:
        return [trace for spec in self.sections[figure] for trace in self.specs[spec]["data"]]


def array(values) -> np.ndarray:
    """Numbers as plotly.js would read them."""
    shape = [int(n) for n in values.get("shape", "-1").split(",")]
    return np.frombuffer(base64.b64decode(values["bdata"]), dtype="<" + values["dtype"]).reshape(shape)


@pytest.fixture(scope="module")
def shown(runs) -> Page:
    return Page((runs / "report.html").read_text())


# --- the page ---


def test_all_figures_are_there_with_their_data(shown):
    expected = [
        name for name in FIGURES if name not in ("faults", ONLY_WITH_AVERAGES, *ONLY_WITH_DEVICES, *ONLY_WITH_METRICS)
    ]
    assert list(shown.sections) == ["results", *expected, "configuration"]
    for name in expected:
        traces = shown.traces(name)
        assert traces, name
        for trace in traces:
            numbers = array(trace["z"] if trace["type"] == "heatmap" else trace["x"])
            assert len(numbers), name
            assert np.isfinite(numbers).any(), name


def test_further_metrics_clients_and_confusion_matrices_are_shown(tmp_path):
    rng, owner = np.random.default_rng(0), np.arange(120) % 12
    x = rng.normal(size=(120, 3))
    data = mmfl.data.from_arrays(x, np.argmax(x, axis=1), owner)
    pool = mmfl.Federation([toy_task(SCRIPT, 3, data=data, lr=0.5, metrics=["perplexity", "confusion"])])
    mmfl.compare(pool, ["random", "full"], 3, 0.5, 2, directory=tmp_path / "run")
    comparison = load(tmp_path / "run")
    made = {name: FIGURES[name](comparison) for name in ONLY_WITH_METRICS}
    titles = {name: [panel.title for panel in figure.panels] for name, figure in made.items()}
    assert titles["metrics"] == [f"{SCRIPT}: perplexity, lower is better"]
    assert titles["clients"] == [f"{SCRIPT}: median client", f"{SCRIPT}: worst tenth of clients"]
    assert titles["confusion"] == [f"random, {SCRIPT}", f"full, {SCRIPT}"]
    counts = sum(run.confusion(SCRIPT).to_numpy() for run in comparison.of("full"))
    (heat,) = made["confusion"].panels[1].marks
    np.testing.assert_allclose(heat.values, counts / counts.sum(1, keepdims=True))
    line = made["client_distribution"].panels[0].marks[1]
    values = [run.client_metric(SCRIPT)["value"] for run in comparison.of("full")]
    np.testing.assert_allclose(line.y, np.sort(pd.concat(values)))
    mmfl_page = Page(page(comparison, list(made.values())))
    assert all(mmfl_page.traces(name) for name in ONLY_WITH_METRICS)
    captions = mmfl_page.words["caption"]
    assert "all test metrics: last tested round" in captions
    assert "test metric by client, on its own examples: last tested round" in captions
    export(made.values(), tmp_path, ["png", "csv"])


def test_averaged_weights_are_shown_beside_the_current_ones(tmp_path):
    compare(tmp_path / "run", ["random", "full"], average=2)
    compare(tmp_path / "other", ["fedavg"], seeds=1)
    comparison = load(tmp_path / "run")
    both = Comparison([*comparison, *load(tmp_path / "other")])
    figure = FIGURES["average"](both)
    assert [panel.title for panel in figure.panels] == [SCRIPT, "dollars $x_{", "mean of the tasks", "worst task"]
    marks = figure.panels[2].marks
    assert [(mark.name, mark.pale) for mark in marks] == [
        ("random", False),
        ("full", False),
        ("random", True),
        ("full", True),
    ]
    for mark, quantity in ((marks[0], "average_mean"), (marks[2], "mean")):
        rounds = [[getattr(record, quantity) for record in run.records] for run in comparison.of("random")]
        np.testing.assert_allclose(mark.y, np.mean(rounds, axis=0))
    assert [column for column in figure.table if column not in ("method", "seed", "task", "round")] == [
        "average",
        "current",
    ]
    shown = Page(page(both, [figure]))
    assert {"opacity": 0.4}.items() <= shown.traces("average")[-1].items()
    assert "mean, averaged" in shown.words["th"]
    column = tables.results(both)
    (final, *_) = column.values()
    assert final["mean, averaged"].tolist()[2] == ""
    alone = tables.results(load(tmp_path / "other"))
    assert "mean, averaged" not in next(iter(alone.values()))
    export([figure], tmp_path, ["png", "csv"])


def test_lines_are_means_over_seeds_and_bands_a_standard_deviation(runs, shown):
    accuracy = pd.concat([run.accuracy[SCRIPT] for run in load(runs).of("random")], axis=1)
    band, line = [trace for trace in shown.traces("accuracy") if trace["name"] == "random"][:2]
    np.testing.assert_array_equal(array(line["x"]), accuracy.index)
    np.testing.assert_allclose(array(line["y"]), accuracy.mean(axis=1), rtol=1e-6)
    high, low = np.split(array(band["y"]), 2)
    np.testing.assert_allclose(high - array(line["y"]), accuracy.std(axis=1), atol=1e-6)
    np.testing.assert_allclose(high - array(line["y"]), array(line["y"]) - low[::-1], atol=1e-6)


def test_a_page_fetches_nothing_and_names_are_shown_as_they_are_and_never_run(runs, shown):
    text = (runs / "report.html").read_text()
    assert {value[0] for _, value in shown.addresses} == {"#"}
    assert "default-src 'none'" in text
    assert SCRIPT not in text
    assert len(shown.scripts) == 3 + sum(map(len, shown.sections.values()))
    assert SCRIPT in "".join(shown.words["h1"])
    titles = {note["text"] for note in shown.specs["accuracy-1"]["layout"]["annotations"]}
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in titles
    comparison = load(runs)
    told = page(comparison, [], [Source(SCRIPT, {"device": SCRIPT, "tasks": [{"name": SCRIPT}]}, comparison)])
    assert SCRIPT not in told
    assert SCRIPT in "".join(Page(told).words["pre"])


def test_the_heading_and_the_tables_say_what_was_run(runs, shown):
    words = shown.words["dd"]
    assert {", ".join(METHODS), "12", "6", "0, 1, 2", "0.5", "run"} <= set(words)
    assert any(mmfl.__version__ in word for word in words)
    captions = shown.words["caption"]
    assert captions[0] == "final test metric: last tested round, 3 seeds; ± of mean: its standard deviation over seeds"
    assert "paired differences: final test metric minus that of random, seed by seed, 95% intervals" in captions
    final = load(runs).table().loc["mmfl-group", "mean"]
    assert f"{final:.3f}" in shown.words["td"]


def test_differences_are_paired_over_seeds(runs):
    comparison = load(runs)
    table = FIGURES["differences"](comparison).table.set_index(["method", "minus"])
    ours, theirs = (np.array([run.final()["mean"] for run in comparison.of(name)]) for name in ("random", "full"))
    row, gap = table.loc["random", "full"], ours - theirs
    half = 4.302653 * gap.std(ddof=1) / 3**0.5  # Student's t with two degrees of freedom
    assert row["difference"] == pytest.approx(gap.mean())
    assert (row["low"], row["high"]) == pytest.approx((gap.mean() - half, gap.mean() + half), rel=1e-5)
    assert row["sure"] == (abs(gap.mean()) > half)


# --- exports ---


def test_exports_read_back_as_the_figures_tables(runs):
    made = figures(load(runs))
    assert {path.name for path in (runs / "report").iterdir()} == {
        f"{figure.name}.{kind}" for figure in made for kind in ("png", "csv", "parquet")
    }
    for figure in made:
        file = runs / "report" / figure.name
        pd.testing.assert_frame_equal(pd.read_csv(file.with_suffix(".csv")), figure.table, check_dtype=False)
        pd.testing.assert_frame_equal(pd.read_parquet(file.with_suffix(".parquet")), figure.table)
        with Image.open(file.with_suffix(".png")) as picture:
            assert len(np.unique(np.asarray(picture.convert("L")))) > 10, figure.name


def test_parquet_without_pyarrow_and_unknown_formats_are_refused(runs, tmp_path, monkeypatch):
    made = figures(load(runs))[:1]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with refused("Parquet needs pyarrow", "pip install 'mmfl[report]'"):
        export(made, tmp_path, ["parquet"])
    with refused("unknown format 'xlsx'", "csv, parquet, png"):
        formats_of("png,xlsx")
    with refused("no format given", "png, csv, parquet"):
        formats_of(" , ")


def test_a_place_that_cannot_be_written_is_named(runs, tmp_path):
    (tmp_path / "file").touch()
    done = mmfl_report(str(runs), "--out", "file/report.html", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: report 'file/report.html' cannot be written: ")
    assert len(done.stderr.splitlines()) == 1
    with refused("cannot be written"):
        export(figures(load(runs))[:1], tmp_path / "file" / "folder", ["csv"])


# --- which runs ---


def changed(runs: Path, to: Path, change) -> Path:
    """The run with every record changed."""
    directory = RunDirectory.create(to, RunDirectory.open(runs).config())
    directory.append([RoundRecord.from_json(change(record.to_json())) for record in RunDirectory.open(runs).records()])
    return to


def named(comparison: Comparison) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures(comparison)}


def test_a_run_without_a_finished_round_is_refused(tmp_path):
    RunDirectory.create(tmp_path / "empty", {})
    with refused("run", "empty", "no finished round yet"):
        load_sources([tmp_path / "empty"])


def test_old_records_without_the_newer_fields_are_shown_without_them(runs, tmp_path):
    def older(record):
        record.pop("clusters", None)
        for task in record["tasks"].values():
            for name in [name for name in task if name.startswith("probability")]:
                task.pop(name)
        return record

    before, after = named(load(runs)), named(load(changed(runs, tmp_path / "old", older)))
    assert set(before) - set(after) == {"clusters", "probabilities"}
    for name in after:
        pd.testing.assert_frame_equal(after[name].table, before[name].table)


def test_one_seed_has_no_bands_and_no_intervals(runs, tmp_path):
    alone = Comparison([run for run in load(runs) if run.seed == 0])
    by_name = named(alone)
    lows = [line.low for panel in by_name["accuracy"].panels for line in panel.marks]
    assert lows
    assert set(lows) == {None}
    assert "bands" not in by_name["accuracy"].caption
    assert by_name["differences"].table[["low", "high"]].isna().all(axis=None)
    text = page(alone, list(by_name.values()))
    assert "(one seed)" in text
    assert "± of mean" not in text


def test_one_method_has_nothing_to_compare(tmp_path):
    run = mmfl.train(federation(), "random", rounds=3, rate=0.5)
    run.report(tmp_path / "new" / "one.html")
    shown = Page((tmp_path / "new" / "one.html").read_text())
    assert "differences" not in shown.sections
    assert "relative" not in shown.sections
    assert "configuration" not in shown.sections
    assert not [value for tag, value in shown.open if tag == "fieldset"]
    assert shown.traces("accuracy")


def test_what_was_never_measured_makes_no_figure_and_no_fuss(runs, tmp_path):
    def untested(record):
        record |= {"mean": None, "worst": None}
        for task in record["tasks"].values():
            task |= {"metric": None, "loss": None}
        return record

    path = changed(runs, tmp_path / "untested", untested)
    done = mmfl_report("untested", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = Page((path / "report.html").read_text())
    assert not {"accuracy", "relative", "loss", "differences", "efficiency"} & set(shown.sections)
    assert {"participation", "step_size"} <= set(shown.sections)


def test_a_seed_that_diverged_leaves_the_line_to_the_others(runs, tmp_path):
    def diverged(record):
        if record["seed"] == 1 and record["round"] > 2:
            record["tasks"][SCRIPT] |= {"metric": None, "loss": None}
        return record

    panel = FIGURES["accuracy"](load(changed(runs, tmp_path / "diverged", diverged))).panels[0]
    rest = pd.concat([run.accuracy[SCRIPT] for run in load(runs).of("random") if run.seed != 1], axis=1).mean(axis=1)
    np.testing.assert_allclose(panel.marks[0].y[2:], rest[2:])


def test_metrics_that_are_better_when_low_are_said_to_be(tmp_path):
    quadratic = mmfl.runs.config.read("quadratic")
    comparison = mmfl.compare(quadratic.experiment().federation_of, ["random", "full"], rounds=3, rate=0.5)
    shown = Page(page(comparison, figures(comparison), [Source("run", quadratic.plain(), comparison)]))
    assert any("lower is better" in word for word in shown.words["dd"])
    worst = FIGURES["accuracy"](comparison).table.set_index(["task", "method", "round"])["value"]
    for task in comparison.tasks:
        assert (worst["(worst)"] >= worst[task] - 1e-12).all()


def record(round: int, drawn: int = 0, method: str = "random", **values: float) -> RoundRecord:
    """A round of the task `a`, which one of five clients trained."""
    tasks = {"a": TaskRecord(**{"metric": round / 5000, "loss": 1.0, "step_size": 1.0} | values)}
    cost = Cost(trainings=1, processors=1, bytes_up=9, bytes_down=9)
    return RoundRecord(round, method, 0, 0.5, 0.5, tasks, 5, 1, cost, {"a": Drawn([drawn], [1])}, seconds=0.1)


def seeds_of(*seeds: list[RoundRecord]) -> Comparison:
    """The records of each seed as a run."""
    return Comparison([Run(records, "random", n, ["a"], 5) for n, records in enumerate(seeds)])


def test_a_client_that_trained_with_one_seed_is_missing_with_the_others():
    seeds = [[0, 1, 2], [3, 3, 3]]  # who trained in which round
    comparison = seeds_of(*([record(t, who) for t, who in enumerate(each, 1)] for each in seeds))
    figure = FIGURES["participation"](comparison)
    assert figure.panels[0].title == "random: 3 of 5 never trained"
    assert "means over seeds" in figure.caption
    heat = figure.panels[0].marks[0]
    assert heat.rows == ["client 3", "client 0", "client 1", "client 2", "client 4"]
    np.testing.assert_allclose(heat.values[:, 0], [3 / 6, 1 / 6, 1 / 6, 1 / 6, np.nan])


def test_panels_of_participation_share_clients_and_colours_and_show_in_grey_who_never_trained(runs, shown):
    figure = FIGURES["participation"](load(runs))
    heats = [panel.marks[0] for panel in figure.panels]
    assert len({tuple(heat.rows) for heat in heats}) == 1
    assert len({(heat.low, heat.high) for heat in heats}) == 1
    chosen = max(np.nanmax(heat.values) for heat, method in zip(heats, METHODS, strict=True) if method != "full")
    assert heats[0].high == chosen < 1
    axis = shown.specs["participation-1"]["layout"]["coloraxis"]
    assert axis["colorbar"]["title"]["text"] == "trainings a round"
    grey, coloured = [trace for trace in shown.traces("participation") if trace["xaxis"] == "x"]
    assert "never trained" in grey["hovertemplate"]
    np.testing.assert_array_equal(np.isnan(array(grey["z"])), ~np.isnan(array(coloured["z"])))


def test_texts_of_cells_are_read_on_all_colours(shown):
    for share in np.linspace(0, 1, 101):
        light, dark = sorted([luminance(shade(share)), float(ink(share) == "#FFFFFF")], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5
    traces = shown.traces("differences")
    written = sum((np.array(trace["text"]) != "").sum() for trace in traces)
    assert written == sum(np.isfinite(array(trace["z"])).sum() for trace in traces) == len(METHODS) * (len(METHODS) - 1)


def test_bands_of_what_cannot_be_negative_end_at_zero():
    for least, is_band in ((0.1, np.equal), (-0.1, np.less)):  # the second is of a loss that can be negative
        losses = [[least, 0.2], [2.0, 3.0]]
        comparison = seeds_of(*([record(t, loss=loss) for t, loss in enumerate(each, 1)] for each in losses))
        assert is_band(FIGURES["loss"](comparison).panels[0].marks[0].low, 0).all()


def test_long_curves_are_thinned_but_keep_both_ends():
    comparison = seeds_of([record(t) for t in range(1, 5001)])
    line = FIGURES["accuracy"](comparison).panels[0].marks[0]
    assert len(line.x) == 400
    assert (line.x[0], line.x[-1], line.y[-1]) == (1, 5000, 1.0)
    assert len(FIGURES["accuracy"](comparison).table) == 15000
    assert FIGURES["participation"](comparison).panels[0].title == "random: 4 of 5 never trained"
    assert tables.final_title(comparison) == "final test metric: mean of the last 20 tested rounds, 1 seed"
    assert "random: 1, 2, 3, 4" in FIGURES["participation"](comparison).caption


# --- several directories ---


def test_seeds_of_one_experiment_are_put_together_and_other_runs_told_apart(tmp_path):
    compare(tmp_path / "a", ["random"], seeds=[0, 1], rounds=2)
    compare(tmp_path / "b", ["random"], seeds=[2], rounds=2)
    compare(tmp_path / "c", ["random", "full"], seeds=[3], rounds=3)
    one = combine_sources(load_sources([tmp_path / "a", tmp_path / "b", tmp_path / "a"]))
    assert [(run.method, run.seed) for run in one] == [("random", 0), ("random", 1), ("random", 2)]
    both = combine_sources(load_sources([tmp_path / "a", tmp_path / "c"]))
    assert both.methods == ["random (a)", "random (c)", "full (c)"]
    assert [both.full_of(method) for method in both.methods] == [None, "full (c)", "full (c)"]
    table = both.table()
    assert np.isnan(table.loc["random (a)", "relative"])
    assert table.loc["random (c)", "relative"] == pytest.approx(load(tmp_path / "c").table().loc["random", "relative"])
    assert set(FIGURES["relative"](both).table["method"]) == {"random (c)"}
    title, first = next(iter(tables.results(both).items()))
    assert first["seeds"].tolist() == ["2", "1", "1"]
    assert "seeds as listed" in title


def test_runs_that_differ_in_more_than_methods_and_seeds_are_compared_with_a_warning(tmp_path):
    tasks = [{"name": "a", "lr": 0.1}]
    for name, config, rounds in (
        ("one", {"methods": ["random"], "rounds": 2, "rate": 0.5, "tasks": tasks}, 2),
        ("other", {"methods": ["full"], "rounds": 6, "rate": 0.5, "tasks": [{**tasks[0], "lr": 0.2}]}, 6),
        ("third", {"methods": ["full"], "rounds": 6, "rate": 0.5, "seeds": [0], "tasks": tasks}, 2),
    ):
        directory = RunDirectory.create(tmp_path / name, config)
        directory.append([record(t, method=config["methods"][0]) for t in range(1, rounds + 1)])
    sources = load_sources([tmp_path / "one", tmp_path / "other"])
    assert list_differences(sources) == ["rounds trained: 2 (one), 6 (other)", "tasks.a.lr: 0.1 (one), 0.2 (other)"]
    both = combine_sources(sources)
    assert both.methods == ["random", "full"]
    assert both.full_of("random") is None  # that of another experiment
    shown = Page(page(both, [], sources))
    assert shown.words["li"] == list_differences(sources)
    done = mmfl_report("one", "other", "one", "--out", "both.html", cwd=tmp_path)
    assert "given more than once, and counted once: one\n" in done.stdout
    assert "These runs differ in more than methods and seeds" in done.stdout
    unfinished = load_sources([tmp_path / "one", tmp_path / "third"])
    assert list_differences(unfinished) == ["rounds: 2 (one), 6 (third)"]  # of which 2 were trained
    assert list_differences(sources[:1]) == []


def test_the_place_of_a_report_is_a_page_or_a_folder_and_a_folder_of_runs_is_no_run(runs, tmp_path):
    done = mmfl_report(str(runs), "--out", "rep.txt", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: report 'rep.txt' ends in .txt; expected a name that ends in .html, or a folder.\n"
    (tmp_path / "v1.0").mkdir()
    assert place(tmp_path / "v1.0") == tmp_path / "v1.0" / "report.html"
    with refused("is not a run directory: it has no config.toml, but holds the runs run."):
        load_sources([runs.parent])


def test_runs_of_other_tasks_are_not_compared(runs, tmp_path):
    mmfl.train(mmfl.Federation([toy_task("other")], 4), "full", rounds=1, directory=tmp_path / "other")
    with refused("'other' has the tasks other", SCRIPT, "expected the same"):
        load_sources([runs, tmp_path / "other"])


# --- in a browser ---


def test_a_browser_draws_every_figure_hides_methods_and_prints_on_white(runs, browser):
    tab = browser.new_page(color_scheme="dark", viewport={"width": 1200, "height": 800})
    wrong = []
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("console", lambda told: wrong.append(told.text) if told.type == "error" else None)
    tab.on("dialog", lambda dialog: (wrong.append("dialog"), dialog.dismiss()))
    tab.on("request", lambda request: wrong.append(request.url) if not request.url.startswith("file:") else None)
    tab.goto((runs / "report.html").as_uri())
    lines = tab.locator("#accuracy .scatterlayer .js-line")
    tab.locator("#accuracy").scroll_into_view_if_needed()
    lines.first.wait_for(state="attached")
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    ink = "document.querySelector('#accuracy .figure').layout.template.layout.font.color"
    assert tab.evaluate(ink) == "#22272E"
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    tab.emulate_media(media="screen")
    assert tab.evaluate(ink) == "#D8DCE2"
    assert tab.evaluate("[...document.querySelectorAll('.figure')].every(each => each.querySelector('svg.main-svg'))")
    before = lines.count()
    tab.locator("fieldset input[value='random']").uncheck()
    assert lines.count() == before * 3 // 4
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert tab.locator("#accuracy .annotation-text").first.text_content() == SCRIPT
    assert wrong == []
    tab.close()
