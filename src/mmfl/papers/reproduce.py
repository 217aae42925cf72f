"""From the name of a table or figure to its page: run what is missing, conclude, draw, write."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from mmfl.errors import UserError, nearest
from mmfl.papers import pages
from mmfl.papers.reproduction import Claim, Findings, Part, Reproduction, Trainer
from mmfl.papers.store import Results, writing


def chosen(ids: Sequence[str], catalogue: Mapping[str, Reproduction]) -> list[Reproduction]:
    """The reproductions of these names."""
    unknown = next((name for name in ids if name not in catalogue), None)
    if unknown is not None:
        raise UserError(f"unknown table or figure '{unknown}': {nearest(unknown, catalogue)}")
    return [catalogue[name] for name in ids]


def parts_of(made: Sequence[Reproduction], quick: bool, pattern: str = "*") -> list[Part]:
    """The parts behind some tables and figures, each once, whose names match a pattern."""
    known = {part.name: part for each in made for part in each.parts(quick)}
    found = [part for part in known.values() if fnmatch(part.name, pattern)]
    if not found:
        raise UserError(f"no part matches '{pattern}': {nearest(pattern, known)}")
    return found


def train(parts: Sequence[Part], results: Results, quick: bool, trainer: Trainer, say: Callable[[str], None]) -> None:
    """Runs the parts that have not been run."""
    for part in parts:
        if results.done(part, quick):
            say(f"{part.name}: done before")
        else:
            say(f"{part.name}: {part.rounds} rounds, {len(part.seeds)} seeds")
            results.run(part, quick, trainer)


def render(made: Sequence[Reproduction], results: Results, quick: bool) -> Iterator[tuple[Reproduction, Findings]]:
    """Writes the page and picture of each table and figure that has a part done; yields what was found."""
    for each in made:
        parts = each.parts(quick)
        done = [part for part in parts if results.done(part, quick)]
        if done:
            frames = results.frames(done)
            findings = each.find(frames)
            abouts = [results.about(part) if part in done else None for part in parts]
            with writing(results.folder):
                pages.write(results.folder, each, findings, frames, abouts)
            yield each, findings


def index(catalogue: Mapping[str, Reproduction], results: Results, quick: bool) -> Path:
    """Writes the page of all claims, of whatever has been run, and says what has not."""
    claims: list[tuple[Reproduction, Sequence[Claim]]] = []
    missing = []
    for each in catalogue.values():
        parts = each.parts(quick)
        done = [part for part in parts if results.done(part, quick)]
        if done:
            claims.append((each, each.find(results.frames(done)).claims))
        if len(done) < len(parts):
            missing.append(f"{each.id} ({len(done)} of {len(parts)} parts)")
    with writing(results.folder):
        pages.write_index(results.folder, claims, missing)
    return results.folder / "README.md"
