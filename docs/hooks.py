"""What the site adds to the pages of this folder: the repository's other texts, the API, and links that lead there.

Pages link to each other, to the examples and to the source as files of the repository, so that they can be read there.
Here each such file has its place on the site, and links are rewritten to it.
"""

import importlib
import posixpath
import re
from functools import cache
from inspect import ismodule
from pathlib import Path
from types import ModuleType

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

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
    "mmfl.partition",
    "mmfl.models",
    "mmfl.federation",
    "mmfl.federation.objectives",
    "mmfl.federation.schedules",
    "mmfl.federation.arrivals",
    "mmfl.federation.availability",
    "mmfl.methods",
    "mmfl.allocation",
    "mmfl.allocation.sampling",
    "mmfl.local",
    "mmfl.aggregation",
    "mmfl.updates",
    "mmfl.updates.store",
    "mmfl.training",
    "mmfl.training.diagnostics",
    "mmfl.engine",
    "mmfl.runs",
    "mmfl.runs.results",
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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in this folder."""
    for source, place in TEXTS.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    for source in FILES:
        files.append(File.generated(config, _file_page(source), content=_shown(source)))
    for module in API:
        files.append(File.generated(config, _api_page(module), content=f"# {module}\n\n{_directive(module)}"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has them; drawings as part of the page, so that they take its colours; numbers and their spread
    on one line of a table."""
    here = page.file.src_uri
    folder = posixpath.dirname(_source(here))

    def linked(found: re.Match[str]) -> str:
        place = place_of(posixpath.normpath(posixpath.join(folder, found[1])))
        return posixpath.relpath(place, posixpath.dirname(here) or ".") if place else found[1]

    def drawn(found: re.Match[str]) -> str:
        return f'<figure class="drawing">{(ROOT / folder / found[1]).read_text()}</figure>'

    return SPREAD.sub("\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}", LINK.sub(linked, DRAWING.sub(drawn, markdown)))


def _source(place: str) -> str:
    """The file of the repository that a page of the site shows."""
    return next((source for source, site in _places().items() if site == place), f"docs/{place}")


def place_of(source: str) -> str | None:
    """Where the site has a file of the repository, if it does."""
    return source.removeprefix("docs/") if source.startswith("docs/") else _places().get(source)


@cache
def _places() -> dict[str, str]:
    """Where the site has files that are not in this folder."""
    modules = {_module_file(module): _api_page(module) for module in API}
    return TEXTS | {source: _file_page(source) for source in FILES} | modules


def _shown(source: str) -> str:
    """A page with the text of a file."""
    return f"# {source}\n\n```{LANGUAGES[Path(source).suffix]}\n{(ROOT / source).read_text()}```\n"


def _file_page(source: str) -> str:
    return f"files/{source}.md"


def _module_file(module: str) -> str:
    path = f"src/{module.replace('.', '/')}"
    return f"{path}/__init__.py" if (ROOT / path).is_dir() else f"{path}.py"


def _api_page(module: str) -> str:
    return f"api/{module}.md"


def _directive(module: str) -> str:
    """Tells mkdocstrings which names to show: those that the module declares public, or else all that it defines.

    A function named like the file it is in would be taken for that file; it is shown from there.
    """
    imported = importlib.import_module(module)
    public = getattr(imported, "__all__", None)
    if public is None:
        return f"::: {module}\n"
    apart = [name for name in public if _is_file(imported, name)]
    members = "".join(f"        - {name}\n" for name in public if name not in apart)
    shown = [f"::: {module}.{name}.{name}\n    options:\n      show_root_heading: true\n" for name in apart]
    return "\n".join([f"::: {module}\n    options:\n      members:\n{members}", *shown])


def _is_file(package: ModuleType, name: str) -> bool:
    """Whether a name of a package is something else than the file of that name in it."""
    folders = [Path(folder) for folder in getattr(package, "__path__", [])]
    return any((folder / f"{name}.py").is_file() for folder in folders) and not ismodule(getattr(package, name))
