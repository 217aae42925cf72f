"""The steps from the name of a table or figure to its page: train missing parts, test the claims, draw and write."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch

from mmfl.errors import UserError, nearest
from mmfl.papers.pages import page
from mmfl.papers.reproduction import Findings, PaperTrainer, Part, Reproduction
from mmfl.papers.seeds import findings, parts_with_added, until_decided
from mmfl.papers.store import Results, writing
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


def check_anything_was_run(reproductions: Sequence[Reproduction], results: Results, quick: bool) -> None:
    """Refuses to render where not even a part has been run."""
    if not any(results.done(part, quick) for each in reproductions for part in each.parts(quick)):
        raise UserError(f"results folder '{results.folder}' has none of these yet; run without --redraw.")


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


def train_until_decided(
    reproductions: Sequence[Reproduction],
    results: Results,
    quick: bool,
    trainer: PaperTrainer,
    say: Callable[[str], None],
    most: int,
) -> None:
    """Trains each table or figure with more and more seeds, until its claims are decided or there are `most` seeds."""
    for reproduction in reproductions:
        until_decided(reproduction, results, quick, most, lambda parts: train(parts, results, quick, trainer, say), say)


def render(
    reproductions: Sequence[Reproduction], results: Results, quick: bool
) -> Iterator[tuple[Reproduction, Findings]]:
    """Writes the page `<id>.md` of each reproduction, and the figure `<id>.png` if all of its parts have been run.

    Yields the findings of those that are whole.
    """
    for reproduction in reproductions:
        parts = parts_with_added(reproduction, results, quick)
        whole = all(results.done(part, quick) for part in parts)
        found = findings(reproduction, results, quick) if whole else None
        text = page(reproduction, found, results, quick)
        with writing(results.folder):
            if found:
                save(reproduction.draw(results.frames(parts)), results.folder / f"{reproduction.id}.png", dpi=100)
            (results.folder / f"{reproduction.id}.md").write_text(text)
        if found:
            yield reproduction, found
