"""The page in a real browser: what a person sees of runs that begin, go on and end."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from served import SCRIPT, Site, make_deployment, make_run, serving

from conftest import wait_for

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
expect = playwright.expect
expect.set_options(timeout=300_000)
# A run that ends no round beyond the one that a file names.
AS_TOLD = """
import pathlib, sys, time
import mmfl.training.loop
from mmfl.cli import main
told, evaluate = pathlib.Path(sys.argv.pop(1)), mmfl.training.loop.Dispatch.evaluate
def wait(dispatch, round):
    while int(told.read_text() or 0) < round:
        time.sleep(0.05)
    return evaluate(dispatch, round)
mmfl.training.loop.Dispatch.evaluate = wait
main()
"""
TOO_WIDE = """
[...document.querySelectorAll('body, main, nav, #heading, .plot')]
  .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.id || each.className || each.tagName)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "random")
    make_run(folder / "full", "full")
    make_run(folder / "other", tasks=("c",))
    make_run(folder / "script", tasks=(SCRIPT,))
    return folder


class Seen:
    """A page with what went wrong on it, and what it loaded."""

    def __init__(self, page, url: str):
        self.page, self.url = page, url
        self.errors: list[str] = []
        self.replies: list[tuple[str, int]] = []
        self.under_way: set = set()
        page.on("request", lambda request: self.under_way.add(request))
        page.on("requestfinished", lambda request: self.under_way.discard(request))
        page.on("requestfailed", lambda request: self.under_way.discard(request))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda told: self.errors.append(told.text) if told.type == "error" else None)
        page.on("dialog", lambda dialog: (self.errors.append("dialog"), dialog.dismiss()))
        page.on("response", lambda reply: self.replies.append((reply.url.removeprefix(url), reply.status)))

    def go(self, address: str = "") -> None:
        self.page.goto(self.url + address)

    def row(self, id: str):
        return self.page.locator("li.run", has=self.page.get_by_role("button", name=id, exact=True))

    def until(self, expression: str) -> None:
        """Waits until it is so; the page's own policy lets the browser not do the waiting."""
        wait_for(lambda: self.page.evaluate(expression) or self.page.wait_for_timeout(100))

    def names(self) -> list[str]:
        """The names of the lines of the plot."""
        return self.page.evaluate(f"[...new Set({LINES}.map(trace => trace.name))]")


LINES = "(document.querySelector('[data-name=accuracy] .plot')?._fullData ?? [])"
POINTS = f"Math.max(0, ...{LINES}.map(trace => trace.x.length))"


@pytest.fixture
def open_page(browser) -> Iterator:
    """Opens pages, and sees to it that nothing was wrong with them and nothing came from elsewhere."""
    opened = []

    def open_page(url: str, **options) -> Seen:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(300_000)
        opened.append((context, Seen(context.new_page(), url)))
        return opened[-1][1]

    yield open_page
    for context, seen in opened:
        context.close()
        assert seen.errors == []
        assert [url for url, _ in seen.replies if re.match("(http|ws)", url)] == []


@pytest.fixture(scope="module")
def site(folder) -> Iterator[Site]:
    with serving(folder) as site:
        yield site


@pytest.fixture
def seen(site, open_page) -> Seen:
    return open_page(site.url)


def test_a_run_appears_advances_and_ends_on_the_page(tmp_path, open_page):
    folder = tmp_path / "runs"
    folder.mkdir()
    with serving(folder) as site:
        seen = open_page(site.url)
        seen.go()
        expect(seen.page.get_by_text("No runs yet")).to_be_visible()
        expect(seen.page.get_by_text("mmfl run", exact=True)).to_be_visible()
        told = tmp_path / "told"
        told.write_text("2")
        options = ["--rounds", "6", "--seeds", "1", "--set", "evaluate_every=1", "--out", folder / "live"]
        command = [sys.executable, "-c", AS_TOLD, told, "run", "quadratic", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            row = seen.row("live")
            for round in (2, 4):
                told.write_text(str(round))
                expect(row).to_contain_text(f"{round}/6▶ running")
                seen.until(f"{POINTS} == {round}")
            told.write_text("6")
            expect(row).to_contain_text("6/6✓ finished")
            expect(seen.page.locator("#heading")).to_contain_text("finished · round 6 of 6")
            seen.until(f"{POINTS} == 6")
            assert process.wait(timeout=600) == 0
        finally:
            process.kill()


def test_two_runs_are_compared_and_a_reload_shows_the_same(seen):
    seen.go()
    seen.row("random").get_by_role("button").click()
    seen.page.get_by_label("Compare full").check()
    expect(seen.page.get_by_role("heading", name="2 runs side by side")).to_be_visible()
    seen.until(f"{LINES}.some(trace => trace.name == 'full')")
    assert set(seen.names()) == {"random", "full"}
    seen.page.get_by_role("tab", name="Table").click()
    expect(seen.page.get_by_role("row", name="full").first).to_be_visible()
    seen.page.reload()
    expect(seen.page.get_by_role("heading", name="2 runs side by side")).to_be_visible()
    expect(seen.page.get_by_role("row", name="random").first).to_be_visible()
    seen.page.get_by_label("Compare other").check()
    expect(seen.page.locator("#notes")).to_contain_text("other is left out: its tasks (c)")
    seen.page.get_by_role("button", name="Select no run").click()
    expect(seen.page.get_by_text("Nothing is selected")).to_be_visible()


def test_log_and_configuration_are_shown(seen):
    seen.go("#run=random&run=full&tab=log")
    expect(seen.page.locator("pre").first).to_contain_text("checkpoint after round 2")
    expect(seen.page.locator("pre")).to_have_count(2)
    seen.page.get_by_role("tab", name="Log").press("ArrowRight")
    expect(seen.page.get_by_role("tab", name="Configuration")).to_be_focused()
    expect(seen.page.locator("pre").first).to_contain_text('methods = [\n    "random",\n]')


def test_names_are_shown_as_text_whatever_they_are(seen):
    for tab in ("table", "figures"):
        seen.go(f"#run=script&tab={tab}")
        expect(seen.page.locator("#heading")).to_contain_text(SCRIPT)
        expect(seen.page.locator("#panel").get_by_text(SCRIPT).first).to_be_visible()
    assert seen.page.locator("main script").count() == 0


def test_a_deployment_shows_its_nodes_and_its_events_by_kind_while_it_runs(tmp_path, open_page):
    writer = make_deployment(tmp_path / "runs" / "real", name=SCRIPT)
    make_run(tmp_path / "runs" / "simulated")
    with serving(tmp_path / "runs") as site:
        seen = open_page(site.url)
        seen.go("#run=real&tab=deployment")
        nodes, events = (seen.page.get_by_label(name, exact=True) for name in ("Nodes", "Events"))
        expect(nodes.get_by_role("row")).to_have_count(3)
        expect(nodes.get_by_role("row").nth(1)).to_contain_text("8late4")
        expect(nodes).to_contain_text(SCRIPT)
        expect(seen.page.locator(".facts")).to_contain_text("1 of 2")
        expect(events.get_by_role("row")).to_have_count(4)
        seen.page.get_by_label("joined").uncheck()
        expect(events.get_by_role("row")).to_have_count(2)
        writer.written = 0.0
        writer.update({8: ("8", [4])}, set(), 0)
        expect(nodes).to_contain_text("left")
        expect(events.get_by_role("row")).to_have_count(2)  # what was switched off stays so
        seen.row("simulated").get_by_role("button", name="simulated").click()
        expect(seen.page.get_by_role("tab", name="Deployment")).to_be_hidden()
        expect(seen.page.get_by_role("tab", name="Figures")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_deployment_is_not_clipped_at_the_side(tmp_path, open_page, width, scheme):
    make_deployment(tmp_path / "runs" / "real", name="hospital-" * 4)
    with serving(tmp_path / "runs") as site:
        seen = open_page(site.url, viewport={"width": width, "height": 900}, color_scheme=scheme)
        seen.go("#run=real&tab=deployment")
        expect(seen.page.get_by_label("Nodes", exact=True)).to_contain_text("hospital")
        assert seen.page.evaluate(TOO_WIDE) == []


def test_states_have_words_and_reasons(tmp_path, folder, open_page):
    runs = tmp_path / "runs"
    for condition in ("running", "finished", "stopped", "failed"):
        shutil.copytree(folder / "random", runs / condition)
        told = json.loads((runs / condition / "state.json").read_text())
        told |= {"condition": condition, "host": "elsewhere", "reason": "out of <b>memory</b>"}
        (runs / condition / "state.json").write_text(json.dumps(told))
    with serving(runs) as site:
        seen = open_page(site.url)
        seen.go("#run=failed")
        for condition in ("running", "finished", "stopped", "failed"):
            expect(seen.row(condition).locator(".state")).to_contain_text(condition)
        expect(seen.page.locator("#heading .reason")).to_have_text("out of <b>memory</b>")


def test_the_filter_keeps_what_matches_and_all_of_that_can_be_selected(seen):
    seen.go()
    expect(seen.page.locator("li.run")).to_have_count(4)
    seen.page.get_by_label("Filter runs").fill("FINISHED random c")
    expect(seen.page.locator("li.run:visible")).to_have_count(2)
    seen.page.get_by_role("button", name="Select all runs that are listed").click()
    expect(seen.page.locator("#count")).to_have_text("2 of 4 selected")
    seen.page.get_by_label("Filter runs").fill("nothing like it")
    expect(seen.page.get_by_text("No run matches the filter.")).to_be_visible()


def test_light_and_dark_follow_the_system_until_one_is_chosen(site, open_page):
    seen = open_page(site.url, color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "document.querySelector('.plot .xtick text').style.fill"
    seen.go("#run=random")
    seen.page.wait_for_selector(".plot .xtick text")
    dark = [seen.page.evaluate(each) for each in (paper, ink)]
    seen.page.get_by_role("button", name="Use light colours").click()
    seen.until(f"{ink} != '{dark[1]}'")
    assert seen.page.evaluate(paper) == "rgb(255, 255, 255)" != dark[0]
    seen.page.reload()
    expect(seen.page.get_by_role("button", name="Use dark colours")).to_be_visible()


def test_nothing_is_sent_twice_while_nothing_changes_nor_asked_while_the_page_is_hidden(seen):
    seen.go("#run=random")
    seen.page.wait_for_selector("#panel[aria-busy=false] .plot .xtick text")
    seen.replies.clear()
    while sum(url == "api/runs" for url, _ in seen.replies) < 2:
        seen.page.wait_for_timeout(100)
    assert {status for _, status in seen.replies} == {304}
    seen.page.evaluate(
        "Object.defineProperty(document, 'hidden', {get: () => true});"
        "document.dispatchEvent(new Event('visibilitychange'))"
    )
    wait_for(lambda: seen.page.wait_for_timeout(200) or not seen.under_way)  # what was asked before
    seen.replies.clear()
    seen.page.wait_for_timeout(2500)
    assert seen.replies == []


def test_a_server_that_is_gone_is_said_and_found_again_when_it_is_back(seen):
    seen.go()
    expect(seen.row("random")).to_be_visible()
    seen.page.route("**/api/**", lambda route: route.abort())
    expect(seen.page.get_by_text("The server does not answer")).to_be_visible()
    seen.page.unroute("**/api/**")
    expect(seen.page.get_by_text("The server does not answer")).to_be_hidden()
    seen.errors.clear()  # the browser's own line about the answer that did not come


def test_nothing_is_clipped_at_the_side(site, open_page):
    seen = open_page(site.url)
    for tab in ("figures", "table", "log", "config"):
        seen.go(f"#run=random&run=full&tab={tab}")
        seen.page.wait_for_selector(".plot .xtick text, #panel table, #panel pre")
        for width in (1280, 900):
            seen.page.set_viewport_size({"width": width, "height": 800})
            seen.until(f"{TOO_WIDE}.length == 0")
