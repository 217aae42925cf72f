"""The steps from the name of a table or figure to its page: train missing parts, test the claims, draw and write."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

import pandas as pd

from mmfl.errors import UserError, nearest
from mmfl.papers.evidence import markdown
from mmfl.papers.reproduction import PAPERS, Claim, Findings, PaperTrainer, Part, Reproduction
from mmfl.papers.store import About, Results, writing
from mmfl.report.plots import save


def select(ids: Sequence[str], catalogue: Mapping[str, Reproduction]) -> list[Reproduction]:
    """The reproductions with these names."""
    unknown = next((name for name in ids if name not in catalogue), None)
    if unknown is not None:
        raise UserError(f"unknown table or figure '{unknown}': {nearest(unknown, catalogue)}")
    return [catalogue[name] for name in ids]


def parts_of(reproductions: Sequence[Reproduction], quick: bool, pattern: str = "*") -> list[Part]:
    """The parts of these tables and figures, each once, whose names match a pattern."""
    known = {part.name: part for reproduction in reproductions for part in reproduction.parts(quick)}
    found = [part for part in known.values() if fnmatch(part.name, pattern)]
    if not found:
        raise UserError(f"no part matches '{pattern}': {nearest(pattern, known)}")
    return found


def train(
    parts: Sequence[Part], results: Results, quick: bool, trainer: PaperTrainer, say: Callable[[str], None]
) -> None:
    """Runs the parts that have not been run yet."""
    for part in parts:
        if results.done(part, quick):
            say(f"{part.name}: done before")
        else:
            say(f"{part.name}: {part.rounds} rounds, {len(part.seeds)} seeds")
            results.run(part, quick, trainer)


def render(
    reproductions: Sequence[Reproduction], results: Results, quick: bool
) -> Iterator[tuple[Reproduction, Findings]]:
    """Writes the page `<id>.md` and figure `<id>.png` of each reproduction whose parts have all been run.

    A page includes the text in `discussion/<id>.md`. Yields the findings.
    """
    for reproduction in reproductions:
        parts = reproduction.parts(quick)
        if all(results.done(part, quick) for part in parts):
            frames = results.frames(parts)
            findings = reproduction.find(frames)
            abouts = [about for part in parts if (about := results.about(part))]
            page = _page(reproduction, findings, abouts, _discussion(results, reproduction.id))
            with writing(results.folder):
                save(reproduction.draw(frames), results.folder / f"{reproduction.id}.png", dpi=100)
                (results.folder / f"{reproduction.id}.md").write_text(page)
            yield reproduction, findings


def _page(reproduction: Reproduction, findings: Findings, abouts: Sequence[About], discussion: str) -> str:
    quick = " --quick" if any(about.quick for about in abouts) else ""
    paragraphs = [
        f"# {reproduction.title}",
        f"{PAPERS[reproduction.paper]}. Repeat with `mmfl reproduce {reproduction.id}{quick}`; "
        "all pages: [README.md](README.md).",
        reproduction.setting,
        f"![{reproduction.title}]({reproduction.id}.png)",
        "## Numbers",
        markdown(findings.table),
        *findings.notes,
        *(["## Claims", markdown(claims_table(findings.claims))] if findings.claims else []),
        *(["## Discussion", discussion] if discussion else []),
        "## How it was run",
        markdown(runs_table(abouts)),
    ]
    return "\n\n".join(paragraphs) + "\n"


def index(catalogue: Mapping[str, Reproduction], results: Results, quick: bool) -> Path:
    """Writes `README.md`: the text in `discussion/README.md`, all claims by paper, and what was not run in full."""
    tables: dict[str, list[pd.DataFrame]] = {paper: [] for paper in PAPERS}
    without_claims: dict[str, list[str]] = {paper: [] for paper in PAPERS}
    missing = []
    for reproduction in catalogue.values():
        parts = reproduction.parts(quick)
        done = [part for part in parts if results.done(part, quick)]
        if len(done) < len(parts):
            missing.append(f"{reproduction.id} ({len(done)} of {len(parts)} parts)")
        elif claims := reproduction.find(results.frames(parts)).claims:
            page = f"[{reproduction.id}]({reproduction.id}.md)"
            tables[reproduction.paper].append(claims_table(claims).assign(page=page))
        else:
            without_claims[reproduction.paper].append(f"[{reproduction.title}]({reproduction.id}.md)")
    paragraphs = ["# Results", *filter(None, [_discussion(results, "README")])]
    if missing:
        paragraphs.append(f"**Not run in full yet:** {', '.join(missing)}.")
    for paper, name in PAPERS.items():
        if tables[paper]:
            paragraphs += [f"## {name}", markdown(pd.concat(tables[paper]))]
        if without_claims[paper]:
            paragraphs.append(f"Without a claim: {', '.join(without_claims[paper])}.")
    path = results.folder / "README.md"
    with writing(results.folder):
        path.write_text("\n\n".join(paragraphs) + "\n")
    return path


def claims_table(claims: Sequence[Claim]) -> pd.DataFrame:
    """A row per claim."""
    lines = [[claim.text, claim.paper, claim.ours, claim.verdict.value] for claim in claims]
    return pd.DataFrame(lines, columns=["claim", "paper", "ours", "verdict"])


def runs_table(abouts: Sequence[About]) -> pd.DataFrame:
    """A row per part: what was run, on which device, and how long it took."""
    lines = []
    for about in abouts:
        part, seeds = f"{about.part} (quick)" if about.quick else about.part, _ranges(about.seeds)
        time, version = f"{about.seconds:,.0f} s", f"{about.version}, commit {about.commit}"
        lines.append([part, about.rounds, seeds, about.device, time, version])
    return pd.DataFrame(lines, columns=["part", "rounds", "seeds", "device", "time", "version"])


def _ranges(seeds: Sequence[int]) -> str:
    whole = list(seeds) == list(range(min(seeds), max(seeds) + 1))
    return f"{min(seeds)} to {max(seeds)}" if whole and len(seeds) > 2 else ", ".join(map(str, seeds))


def _discussion(results: Results, name: str) -> str:
    path = results.folder / "discussion" / f"{name}.md"
    return path.read_text().strip() if path.is_file() else ""
