"""Adds to the site what is not in this folder: README and other texts, examples, and the API reference.

In the repository, pages link to files: to each other, to examples and to the source. Each such file has a page on the
site, and links are rewritten to it.
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


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are not in this folder."""
    for source, place in TEXTS.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    for source in FILES:
        files.append(File.generated(config, _file_page(source), content=_file_content(source)))
    for module in API:
        files.append(File.generated(config, _api_page(module), content=f"# {module}\n\n{_directive(module)}"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links for the site, embeds drawings so that they use the page's colours, and keeps a number and its
    spread on one line."""
    page_uri = page.file.src_uri
    folder = posixpath.dirname(_source(page_uri))

    def rewrite_link(found: re.Match[str]) -> str:
        place = place_of(posixpath.normpath(posixpath.join(folder, found[1])))
        return posixpath.relpath(place, posixpath.dirname(page_uri) or ".") if place else found[1]

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
