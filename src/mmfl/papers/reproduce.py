"""The steps from the name of a table or figure to its page: train missing parts, test the claims, draw and write."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from mmfl.errors import UserError, nearest
from mmfl.papers import pages
from mmfl.papers.reproduction import Claim, Findings, Part, Reproduction, Trainer
from mmfl.papers.store import Results, writing


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


def train(parts: Sequence[Part], results: Results, quick: bool, trainer: Trainer, say: Callable[[str], None]) -> None:
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
    """Writes the page and figure of each reproduction with at least one finished part; yields its findings."""
    for reproduction in reproductions:
        parts = reproduction.parts(quick)
        done = [part for part in parts if results.done(part, quick)]
        if done:
            frames = results.frames(done)
            findings = reproduction.find(frames)
            abouts = [results.about(part) if part in done else None for part in parts]
            with writing(results.folder):
                pages.write(results.folder, reproduction, findings, frames, abouts)
            yield reproduction, findings


def index(catalogue: Mapping[str, Reproduction], results: Results, quick: bool) -> Path:
    """Writes the page with all claims of the finished parts, and lists what has not been run."""
    claims: list[tuple[Reproduction, Sequence[Claim]]] = []
    missing = []
    for reproduction in catalogue.values():
        parts = reproduction.parts(quick)
        done = [part for part in parts if results.done(part, quick)]
        if done:
            claims.append((reproduction, reproduction.find(results.frames(done)).claims))
        if len(done) < len(parts):
            missing.append(f"{reproduction.id} ({len(done)} of {len(parts)} parts)")
    with writing(results.folder):
        pages.write_index(results.folder, claims, missing)
    return results.folder / "README.md"
