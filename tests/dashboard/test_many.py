"""More runs than can be told apart: some of them are compared, that is said, and the plots stay in sight."""

import shutil

import pytest
from served import make_run, serving

from mmfl.dashboard.answers import MAX_COMPARED_RUNS

LEFT_OUT = f"{MAX_COMPARED_RUNS} runs are compared at most: %d more are left out."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    first = make_run(folder / "a-rather-long-name-of-a-run-00")
    for n in range(1, MAX_COMPARED_RUNS + 3):
        shutil.copytree(first, folder / f"a-rather-long-name-of-a-run-{n:02d}")
    return folder


def test_a_server_asked_for_too_many_compares_the_first_and_says_so(folder):
    with serving(folder) as site:
        ids = [run["id"] for run in site.get("runs")["runs"]]
        figure = site.get("figure", *ids, name="accuracy")
        assert len({trace["name"] for trace in figure["plot"]["data"] if trace.get("showlegend")}) == MAX_COMPARED_RUNS
        for question in ("figures", "table"):
            assert site.get(question, *ids)["notes"] == [LEFT_OUT % 3]
            assert site.get(question, *ids[:MAX_COMPARED_RUNS])["notes"] == []
        assert [each["id"] for each in site.get("log", *ids)] == ids[:MAX_COMPARED_RUNS]


def test_all_selects_as_many_as_can_be_compared_and_its_legend_leaves_room_for_plots(folder, browser):
    expect = pytest.importorskip("playwright.sync_api").expect
    expect.set_options(timeout=300_000)
    with serving(folder) as site:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(300_000)
        page.goto(site.url)
        expect(page.locator("li.run")).to_have_count(MAX_COMPARED_RUNS + 3)
        page.get_by_role("button", name="Select all runs that are listed").click()
        expect(page.locator("#count")).to_have_text(f"{MAX_COMPARED_RUNS} of {MAX_COMPARED_RUNS + 3} selected")
        expect(page.locator("#notes")).to_have_text(LEFT_OUT % 3)
        page.wait_for_selector(f"#heading h2:has-text('{MAX_COMPARED_RUNS} runs side by side')")
        plot = page.locator("[data-name=accuracy]:not(.old) .plot .cartesianlayer")
        expect(plot).to_be_visible()
        below = plot.bounding_box()["y"] - page.locator("[data-name=accuracy]").bounding_box()["y"]
        assert below < 200  # pixels of title, caption and legend
        assert page.locator("#heading").bounding_box()["height"] < 120
        page.locator("li.run input:not(:checked)").first.click()
        expect(page.locator("#notes")).to_have_text(LEFT_OUT % 1)
        expect(page.locator("li.run input:checked")).to_have_count(MAX_COMPARED_RUNS)
        page.locator("li.run input:checked").first.click()
        expect(page.locator("#notes")).to_have_text("")
        page.close()
