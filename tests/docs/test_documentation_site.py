"""The site is built without a warning, has everything that it should, and asks nobody else for anything."""

import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import pytest

import mmfl
from conftest import made_once
from mmfl.papers.reproduction import PAPERS
from pages import PAGES, ROOT, environment, text_of

pytest.importorskip("zensical")  # the extra `docs`
yaml = pytest.importorskip("yaml")  # which brings it


def script(name):
    """A script of docs/."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


builder, reference = script("build"), script("reference")


class Page(HTMLParser):
    """Tags of a page, its anchors, and what a browser fetches for it."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags, self.anchors, self.fetched = set(), set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.add(tag)
        self.anchors.add(given.get("id"))
        if tag in ("script", "img", "link", "iframe", "source"):
            self.fetched.append(given.get("src") or given.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    return made_once(tmp_path_factory, "site", build)


def build(folder: Path) -> None:
    command = [sys.executable, "docs/build.py", str(folder)]
    built = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stdout + built.stderr


def test_every_page_of_the_repository_is_on_the_site(site):
    places = [builder.place_of(page).removesuffix(".md") for page in PAGES]
    made = [re.sub(r"(^|/)README$", r"\1index", place) + ".html" for place in places]
    assert [page for page in made if not (site / page).is_file()] == []


def test_pages_fetch_nothing_from_elsewhere(site):
    pages = {path: Page(path).fetched for path in site.rglob("*.html")}
    assert [(path.name, link) for path, links in pages.items() for link in links if "//" in link] == []
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\(['\"]?(?:https?:)?//[^)]*", styles) == []


def test_pages_opened_as_files_can_be_searched(site, browser):
    page = browser.new_page()
    page.goto((site / "start.html").as_uri())
    page.get_by_role("button", name="Search").first.click()
    page.get_by_placeholder("Search").last.press_sequentially("vulnerabilities")
    page.locator("a[href*='releases.html?h=vulnerabilities']").first.wait_for(timeout=120_000)
    page.close()


def test_no_text_is_taken_for_a_tag(site):
    strange = {
        tag for path in site.rglob("*.html") for tag in Page(path).tags if not re.fullmatch(r"[a-z]+[1-6]?", tag)
    }
    assert strange == set()


@pytest.mark.parametrize("module", builder.API)
def test_every_public_name_is_in_the_reference(site, module):
    page = Page(site / f"api/{module}.html")
    imported = importlib.import_module(module)
    for name in getattr(imported, "__all__", []):
        public = getattr(imported, name)
        if inspect.ismodule(public):
            assert public.__name__ in builder.API
        else:
            anchors = {f"{module}.{name}", f"{module}.{name}.{name}"}  # the second for a function in a file of its name
            assert anchors & page.anchors, name


def test_every_package_is_in_the_reference_but_those_behind_commands():
    packages = {f"mmfl.{path.parent.name}" for path in (ROOT / "src/mmfl").glob("*/__init__.py")}
    behind = {"mmfl.dashboard", "mmfl.papers", "mmfl.deployment", "mmfl.report", "mmfl.cli"}
    assert packages - set(builder.API) == behind


def test_the_table_of_modules_has_every_module_of_the_reference():
    listed = re.findall(r"^\| \[([\w.]+)\]", text_of("docs/api.md"), re.MULTILINE)
    assert sorted(listed) == sorted(builder.API)


def test_the_configuration_reference_is_up_to_date():
    assert text_of("docs/configuration.md") == reference.page(), "run: python docs/reference.py"


@pytest.mark.parametrize("title", reference.SECTIONS)
def test_every_key_says_what_it_means_and_its_examples_are_valid(title):
    _, model = reference.SECTIONS[title]
    needed = {"name": "x", "data": "digits", "model": "logistic", "clients": 4, "clip": 1.0, "noise": 2.0}
    for name, field in model.model_fields.items():
        assert field.description, name
        table = name in ("tasks", "federation", "privacy", "stop", "central_noise")
        assert table or field.examples, name
        for example in field.examples or []:
            given = {key: value for key, value in needed.items() if key in model.model_fields}
            values = tomllib.loads(f"value = {reference.toml(example)}")["value"]
            assert values == example
            model.model_validate({**given, name: values})


def test_citation_and_changelog_are_of_this_version():
    citation = yaml.safe_load(text_of("CITATION.cff"))
    assert (citation["version"], citation["license"]) == (mmfl.__version__, "Apache-2.0")
    assert len(citation["references"]) == len(PAPERS.keys() - {"forecast"})  # which is of this project
    assert f"## [{mmfl.__version__}]" in text_of("CHANGELOG.md")


def test_the_drawing_of_the_rooms_is_up_to_date():
    rooms = script("rooms")
    assert rooms.DRAWING.read_text() == rooms.draw(), "run: python docs/rooms.py"
