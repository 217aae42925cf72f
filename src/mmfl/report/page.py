"""The report: one HTML file with everything in it, for a browser without a network, and for paper."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import pandas as pd
import tomli_w

import mmfl
from mmfl.errors import UserError
from mmfl.report import tables
from mmfl.report.figure import Figure
from mmfl.report.figures import figures
from mmfl.report.interactive import plotly_script, spec_of, theme
from mmfl.report.sources import DIFFERENCES_NOTE, Source, list_differences
from mmfl.report.traces import text_of
from mmfl.runs.files import write_atomically
from mmfl.runs.layout import REPORT_PAGE
from mmfl.runs.results import Comparison

_SHEET = 610  # pixels of a figure that a sheet of paper holds


def write(comparison: Comparison, path: Path, sources: Sequence[Source] = ()) -> Path:
    """Writes the report of some runs."""
    return write_page(page(comparison, figures(comparison), sources), path)


def write_page(text: str, path: Path) -> Path:
    """Writes a page."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise UserError(f"report '{path}' cannot be written: {error.strerror}.") from None
    return path


def place(out: Path) -> Path:
    """The file that `--out` names: itself if it ends in .html, else report.html in a folder of that name.

    >>> place(Path("shared")).as_posix(), place(Path("both.html")).as_posix()
    ('shared/report.html', 'both.html')
    """
    if out.suffix == ".html":
        return out
    if out.suffix and not out.is_dir():
        raise UserError(f"report '{out}' ends in {out.suffix}; expected a name that ends in .html, or a folder.")
    return out / REPORT_PAGE


def page(comparison: Comparison, made: Sequence[Figure], sources: Sequence[Source] = ()) -> str:
    """The report as HTML."""
    results = {**tables.results(comparison), **tables.paired_differences(comparison)}
    configurations = {source.name: source.config for source in sources}
    return fill(
        _title(comparison),
        _facts(comparison, sources),
        results,
        made,
        configurations,
        _differing(sources),
        comparison.methods,
    )


def fill(
    title: str,
    facts: Mapping[str, str],
    results: Mapping[str, pd.DataFrame],
    made: Sequence[Figure],
    configurations: Mapping[str, Mapping[str, Any]],
    note: str = "",
    methods: Sequence[str] = (),
) -> str:
    """A page with facts at its top, tables of texts by their titles, figures, and configurations by their names.
    `methods` can be shown and hidden."""
    parts = {"results": "Results"} | {figure.name: figure.title for figure in made}
    sections = [_results(results), *map(_figure, made)]
    if configurations:
        parts["configuration"] = "Configuration"
        sections.append(_configuration(configurations))
    lines = (f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in facts.items() if text)
    own = resources.files("mmfl.report")
    return (
        (own / "page.html")
        .read_text()
        .format(
            title=escape(title),
            style=(own / "page.css").read_text(),
            facts=f"<dl>{''.join(lines)}</dl>",
            differing=note,
            contents=" ".join(f'<a href="#{name}">{escape(title)}</a>' for name, title in parts.items()),
            choice=_choice(methods),
            sections="\n".join(sections),
            plotly=plotly_script(),
            themes=_json({"light": theme(), "dark": theme(dark=True)}),
            script=(own / "page.js").read_text(),
        )
    )


def _title(comparison: Comparison) -> str:
    names = comparison.methods
    return f"{names[0] if len(names) == 1 else f'{len(names)} methods'} on {', '.join(comparison.tasks)}"


def _facts(comparison: Comparison, sources: Sequence[Source]) -> dict[str, str]:
    """What was run, at a glance."""
    seeds = sorted({run.seed for run in comparison})
    rounds = sorted({run.records[-1].round for run in comparison if run.records})
    clients = sorted({run.clients for run in comparison})
    return {
        "methods": ", ".join(comparison.methods),
        "tasks": ", ".join(_tasks(comparison, sources)),
        "clients": " or ".join(f"{number:,}" for number in clients),
        "rounds": " to ".join(f"{number:,}" for number in dict.fromkeys((rounds[0], rounds[-1]))),
        "seeds": ", ".join(map(str, seeds)),
        "rate": _settings(sources, "rate"),
        "device": _settings(sources, "device"),
        "runs": ", ".join(source.name for source in sources),
        "written": written_by(),
    }


def written_by() -> str:
    """When a page was written, and by which version."""
    return f"{time.strftime('%Y-%m-%d %H:%M')} by mmfl {mmfl.__version__}"


def _differing(sources: Sequence[Source]) -> str:
    """A warning where runs are compared that differ in more than methods and seeds."""
    found = "".join(f"<li>{escape(text)}</li>" for text in list_differences(sources)) if sources else ""
    return f'<div class="note" role="note"><p>{DIFFERENCES_NOTE}:</p><ul>{found}</ul></div>' if found else ""


def _tasks(comparison: Comparison, sources: Sequence[Source]) -> Iterable[str]:
    """The tasks, with what they are measured by where a configuration says so."""
    known = {task.get("name"): task.get("metric") for source in sources for task in source.config.get("tasks", [])}
    for task in comparison.tasks:
        metric = known.get(task)
        name = metric.get("name") if isinstance(metric, Mapping) else metric
        yield f"{task} ({tables.with_direction(name)})" if name else task


def _settings(sources: Sequence[Source], name: str) -> str:
    """A setting of all runs, where their configurations have it."""
    tables = [source.config.get("settings", source.config) for source in sources]
    return ", ".join(dict.fromkeys(str(table[name]) for table in tables if name in table))


def _choice(methods: Sequence[str]) -> str:
    """A box for each method, to show or hide it."""
    if len(methods) < 2:
        return ""
    boxes = (
        f'<label><input type="checkbox" value="{escape(text_of(method))}" checked> {escape(method)}</label>'
        for method in methods
    )
    return f"<fieldset><legend>show</legend>{''.join(boxes)}</fieldset>"


def _results(shown: Mapping[str, pd.DataFrame]) -> str:
    body = "".join(_table(title, frame) for title, frame in shown.items())
    return f'<section id="results"><h2>Results</h2><div class="tables">{body}</div></section>'


def _table(title: str, frame: pd.DataFrame) -> str:
    heads = "".join(f'<th scope="col">{escape(str(name))}</th>' for name in frame.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in frame.to_numpy().tolist()
    )
    head, body = f"<thead><tr>{heads}</tr></thead>", f"<tbody>{rows}</tbody>"
    return f'<div class="wide"><table><caption>{escape(title)}</caption>{head}{body}</table></div>'


def _figure(figure: Figure) -> str:
    plots = []
    for n, spec in enumerate(_sheets(figure), 1):
        data, size = f"{figure.name}-{n}", f"height:{spec['layout']['height']}px"
        plots.append(
            f'<div class="wide"><div class="figure" data-spec="{data}" style="{size}"></div></div>'
            f'<script type="application/json" id="{data}">{_json(spec)}</script>'
        )
    words = f"<h2>{escape(figure.title)}</h2><p>{escape(figure.caption)}</p>"
    return f'<section id="{figure.name}">{words}{"".join(plots)}</section>'


def _sheets(figure: Figure) -> list[dict[str, Any]]:
    """The figure in parts that fit on a sheet of paper: two rows of panels, or one."""
    two, one = ([spec_of(part) for part in figure.parts(rows * figure.columns())] for rows in (2, 1))
    return two if two[0]["layout"]["height"] <= _SHEET else one


def _configuration(configurations: Mapping[str, Mapping[str, Any]]) -> str:
    texts = (
        f"<p>{escape(name)}</p><pre>{escape(tomli_w.dumps(config))}</pre>" for name, config in configurations.items()
    )
    return f'<section id="configuration"><h2>Configuration</h2>{"".join(texts)}</section>'


def _json(value: Mapping[str, Any]) -> str:
    """JSON that cannot end the script it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
