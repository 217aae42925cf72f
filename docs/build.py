"""Builds the site: `python docs/build.py [FOLDER]`, by default into `site/`.

The pages are those of this folder, README and other texts, examples, and the API reference. In the repository, pages
link to files: to each other, to examples and to the source. Each such file has a page on the site, and links are
rewritten to it. So Zensical gets a folder of plain Markdown, which any other generator of sites could read as well.
"""

import importlib
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from inspect import ismodule
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parent.parent
TEXTS = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
}
FILES = ["LICENSE", "CITATION.cff", *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("examples/*.*"))]
LANGUAGES = {".py": "python", ".toml": "toml", ".cff": "yaml", "": "text"}
API = [
    "mmfl",
    "mmfl.data",
    "mmfl.data.augmentation",
    "mmfl.partition",
    "mmfl.models",
    "mmfl.federation",
    "mmfl.federation.objectives",
    "mmfl.federation.metrics",
    "mmfl.federation.schedules",
    "mmfl.federation.optimisers",
    "mmfl.federation.arrivals",
    "mmfl.federation.attacks",
    "mmfl.federation.availability",
    "mmfl.federation.devices",
    "mmfl.federation.device_profiles",
    "mmfl.federation.durations",
    "mmfl.methods",
    "mmfl.allocation",
    "mmfl.allocation.sampling",
    "mmfl.local",
    "mmfl.aggregation",
    "mmfl.pace",
    "mmfl.updates",
    "mmfl.updates.store",
    "mmfl.training",
    "mmfl.training.diagnostics",
    "mmfl.engine",
    "mmfl.runs",
    "mmfl.runs.results",
    "mmfl.runs.sweep_results",
    "mmfl.runs.directory",
    "mmfl.runs.experiment",
    "mmfl.runs.listener",
    "mmfl.record",
    "mmfl.trackers",
    "mmfl.privacy",
    "mmfl.theory",
    "mmfl.randomness",
]
LINK = re.compile(r"(?<=\]\()([^)#:\s]+)")
SPREAD = re.compile(r"(?<=\d) ± (?=\d)")
DRAWING = re.compile(r"!\[[^\]]*\]\(([\w/]+\.svg)\)")


def build(site: Path) -> None:
    """Builds the site into a folder, which it replaces; a link to nowhere stops it."""
    with tempfile.TemporaryDirectory(prefix="mmfl-site-") as name:
        place = Path(name)
        write_pages(place / "docs")
        shutil.copy(ROOT / "mkdocs.yml", place)
        for needed in ("src", "docs/doctests.py"):  # for the API reference
            (place / Path(needed).name).symlink_to(ROOT / needed)
        subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=place, check=True)
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(place / "site", site)


def write_pages(folder: Path) -> None:
    """Writes all pages of the site, and the files that they show."""
    shutil.copytree(ROOT / "docs", folder, ignore=shutil.ignore_patterns("*.py", "__pycache__", "data", "discussion"))
    pages = {page.relative_to(folder).as_posix(): page.read_text() for page in folder.rglob("*.md")}
    pages |= {page: (ROOT / source).read_text() for source, page in TEXTS.items()}
    pages |= {_file_page(source): _file_content(source) for source in FILES}
    pages |= {_api_page(module): f"# {module}\n\n{_directive(module)}" for module in API}
    for page, markdown in pages.items():
        (folder / page).parent.mkdir(parents=True, exist_ok=True)
        (folder / page).write_text(for_site(page, markdown))


def for_site(page: str, markdown: str) -> str:
    """A page with links as they are on the site, with drawings inside it, so that they have its colours, and with a
    number and its spread on one line."""
    folder = posixpath.dirname(_source(page))

    def rewrite_link(found: re.Match[str]) -> str:
        place = place_of(posixpath.normpath(posixpath.join(folder, found[1])))
        return posixpath.relpath(place, posixpath.dirname(page) or ".") if place else found[1]

    def embed_drawing(found: re.Match[str]) -> str:
        return f'<figure class="drawing">{(ROOT / folder / found[1]).read_text()}</figure>'

    return SPREAD.sub(
        "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}", LINK.sub(rewrite_link, DRAWING.sub(embed_drawing, markdown))
    )


def _source(place: str) -> str:
    """The file of the repository that a page of the site is made from."""
    return next((source for source, site in _places().items() if site == place), f"docs/{place}")


def place_of(source: str) -> str | None:
    """The page of the site for a file of the repository, if it has one."""
    return source.removeprefix("docs/") if source.startswith("docs/") else _places().get(source)


@cache
def _places() -> dict[str, str]:
    """The pages of the site for files outside this folder."""
    modules = {_module_file(module): _api_page(module) for module in API}
    return TEXTS | {source: _file_page(source) for source in FILES} | modules


def _file_content(source: str) -> str:
    """A page that shows the text of a file."""
    return f"# {source}\n\n```{LANGUAGES[Path(source).suffix]}\n{(ROOT / source).read_text()}```\n"


def _file_page(source: str) -> str:
    return f"files/{source}.md"


def _module_file(module: str) -> str:
    path = f"src/{module.replace('.', '/')}"
    return f"{path}/__init__.py" if (ROOT / path).is_dir() else f"{path}.py"


def _api_page(module: str) -> str:
    return f"api/{module}.md"


def _directive(module: str) -> str:
    """The directive that tells mkdocstrings which names to show: `__all__`, or everything that the module defines.

    A function with the same name as its file would be mistaken for the file, so it is shown from there.
    """
    imported = importlib.import_module(module)
    public = getattr(imported, "__all__", None)
    if public is None:
        return f"::: {module}\n"
    shadowed = [name for name in public if _is_file(imported, name)]
    members = "".join(f"        - {name}\n" for name in public if name not in shadowed)
    shown = [f"::: {module}.{name}.{name}\n    options:\n      show_root_heading: true\n" for name in shadowed]
    return "\n".join([f"::: {module}\n    options:\n      members:\n{members}", *shown])


def _is_file(package: ModuleType, name: str) -> bool:
    """Whether a name of a package also is the name of a file in it."""
    folders = [Path(folder) for folder in getattr(package, "__path__", [])]
    return any((folder / f"{name}.py").is_file() for folder in folders) and not ismodule(getattr(package, name))


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "site"))
