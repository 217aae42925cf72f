"""Figures of a sweep show the numbers of its table, whatever is swept."""

import numpy as np
import pytest

import mmfl
from conftest import refused, toy_task
from mmfl.report.figure import Dots, Heat, Line
from mmfl.report.interactive import spec_of
from mmfl.report.plots import draw, save
from mmfl.report.sweep_figures import figure, figures


def swept(grid, seeds=1, methods=("random", "full")):
    def federation(lr=0.1, capacity=1, epochs=1):
        tasks = [toy_task(lr=lr, epochs=epochs), toy_task("other/one")]
        return mmfl.Federation(tasks, 4, capacity=capacity)

    return mmfl.sweep(federation, grid, list(methods), rounds=1, seeds=seeds)


def test_one_number_gives_a_line_per_method_against_it_and_a_panel_per_task():
    sweep = swept({"lr": [1.0, 0.01, 0.1]}, seeds=2)
    (drawn,) = figures(sweep)
    assert [panel.title for panel in drawn.panels] == ["toy", "other/one", "mean of the tasks", "worst task"]
    assert {panel.log for panel in drawn.panels} == {"x"}
    line, dots = drawn.panels[0].marks[:2]
    assert isinstance(line, Line)
    assert isinstance(dots, Dots)
    assert line.x.tolist() == [0.01, 0.1, 1.0]
    table = sweep.table().query("method == 'random'").sort_values("lr")
    np.testing.assert_allclose(line.y, table["toy"])
    np.testing.assert_allclose(line.high - line.y, table["toy_spread"])
    assert swept({"rate": [0.5, 1.0]}).at({"rate": 0.5})
    assert figures(swept({"rate": [0.5, 1.0]}))[0].panels[0].log == ""


def test_two_keys_give_a_heat_map_per_method_for_each_task():
    sweep = swept({"lr": [0.01, 0.1, 1.0], "rate": [0.5, 1.0]})
    made = figures(sweep)
    assert [each.name for each in made] == ["sweep-3-mean", "sweep-1-toy", "sweep-2-other-one", "sweep-4-worst"]
    assert [panel.title for panel in made[1].panels] == ["random", "full"]
    (heat,) = made[1].panels[1].marks
    assert isinstance(heat, Heat)
    assert (heat.rows, heat.columns) == (["0.01", "0.1", "1.0"], ["0.5", "1.0"])
    row = sweep.table().query("method == 'full' and lr == 0.1 and rate == 1.0")
    assert heat.values[1, 1] == row["toy"].item()


def test_more_keys_give_small_multiples_of_those_with_most_values():
    drawn = figure(
        swept({"epochs": [1, 2], "lr": [0.01, 0.1, 1.0], "rate": [0.3, 0.5, 1.0]}, methods=["random"]), "mean"
    )
    assert [panel.title for panel in drawn.panels] == ["random, epochs=1", "random, epochs=2"]
    assert {(panel.y_label, panel.x_label) for panel in drawn.panels} == {("lr", "rate")}


def test_values_that_are_no_numbers_give_a_heat_map_of_methods():
    (heat,) = figure(swept({"capacity": [1, "all"]}), "mean").panels[0].marks
    assert (heat.rows, heat.columns) == (["random", "full"], ["1", "all"])


def test_a_run_without_result_is_left_blank_and_the_figure_still_drawn(tmp_path):
    sweep = swept({"lr": [0.01, 0.1], "rate": [0.5, 1.0]})
    sweep.runs = {label: [] if label == "full (lr=0.1, rate=0.5)" else runs for label, runs in sweep.runs.items()}
    drawn = figure(sweep, "toy")
    (heat,) = drawn.panels[1].marks
    assert np.isnan(heat.values).tolist() == [[False, False], [True, False]]
    save(draw(drawn), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 1000


def test_rows_named_by_numbers_are_categories_in_a_browser():
    spec = spec_of(figure(swept({"lr": [0.01, 0.1, 5.0], "rate": [0.5, 1.0]}), "mean"))
    assert {spec["layout"][axis]["type"] for axis in ("xaxis", "yaxis", "xaxis2", "yaxis2")} == {"category"}


def test_an_unknown_task_is_refused(tmp_path):
    with refused("no task 'toi'", "did you mean 'toy'?"):
        swept({"rate": [0.5, 1.0]}).plot(tmp_path / "figure.png", "toi")


@pytest.mark.parametrize("grid", [{"rate": [0.5, 1.0]}, {"lr": [0.1, 0.2], "rate": [0.5, 1.0]}])
def test_picture_report_and_notebook_show_a_sweep(grid, tmp_path):
    sweep = swept(grid)
    sweep.plot(tmp_path / "sweep.png")
    sweep.report(tmp_path / "sweep.html")
    page = (tmp_path / "sweep.html").read_text()
    assert f"<h1>Sweep over {', '.join(grid)}</h1>" in page
    assert page.count("<fieldset>") == (len(grid) == 1)
    assert "<td>random</td>" in sweep._repr_html_()
    assert repr(sweep) == f"Sweep({', '.join(grid)}; 2 methods, {2 ** len(grid)} points)"
