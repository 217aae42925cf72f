"""Pages of results: one for every table and figure, and the index of all claims."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from mmfl.papers.evidence import markdown
from mmfl.papers.families import judge
from mmfl.papers.reproduction import OWN, PAPERS, Claim, Findings, Reproduction, Verdict
from mmfl.papers.seeds import findings, parts_with_added
from mmfl.papers.store import About, Results, writing

CLAIMS, QUESTIONS = "Claims", "Our own questions"
ADDED_SEEDS = (
    "Seeds {seeds} were added to the planned ones with `--until-decided`. A verdict is that of the first look that "
    "decided; the levels of all looks add up to 5%."
)


def page(reproduction: Reproduction, found: Findings | None, results: Results, quick: bool) -> str:
    """The page of a table or figure, with the text in `discussion/<id>.md`.

    Without findings it says which parts are missing. It then has no numbers: claims are judged by all runs or by none.
    """
    parts = parts_with_added(reproduction, results, quick)
    abouts = [about for part in parts if results.done(part, quick) and (about := results.about(part))]
    added = sorted({seed for part in parts if part.adds_seeds for seed in part.seeds})
    text = discussion(results, reproduction.id)
    paragraphs = [
        f"# {reproduction.title}",
        f"{PAPERS[reproduction.paper]}. Repeat with `mmfl reproduce {reproduction.id}{' --quick' if quick else ''}`; "
        "all pages: [README.md](README.md).",
        reproduction.setting,
        *([ADDED_SEEDS.format(seeds=_ranges(added))] if added else []),
        *(_numbers(reproduction, found) if found else [_missing(reproduction, results, quick)]),
        *(["## Discussion", text] if text else []),
        *(["## How it was run", markdown(runs_table(abouts))] if abouts else []),
    ]
    return "\n\n".join(paragraphs) + "\n"


def _numbers(reproduction: Reproduction, found: Findings) -> Iterator[str]:
    """Figure, table, notes and claims."""
    yield f"![{reproduction.title}]({reproduction.id}.png)"
    yield "## Numbers"
    yield markdown(found.table)
    yield from found.notes
    for heading in (CLAIMS, QUESTIONS):
        if claims := [claim for claim in found.claims if heading_of(claim) == heading]:
            yield f"## {heading}"
            yield markdown(claims_table(claims))


def _missing(reproduction: Reproduction, results: Results, quick: bool) -> str:
    parts = reproduction.parts(quick)
    missing = [f"`{part.name}`" for part in parts if not results.done(part, quick)]
    return (
        f"**Not run in full yet**: {len(parts) - len(missing)} of {len(parts)} parts have been run; numbers and claims "
        f"need all of them. Missing: {', '.join(missing)}."
    )


def index(catalogue: Mapping[str, Reproduction], results: Results, quick: bool) -> Path:
    """Writes `README.md`: the texts `discussion/summary.md` and `discussion/README.md`, and all claims by paper."""
    found, missing = _all_findings(catalogue, results, quick)
    rows = all_claims({id: each.claims for id, each in found.items()})
    paper_of = {id: each.paper for id, each in catalogue.items()}
    rows["of"] = rows["id"].map(paper_of)
    paragraphs = ["# Results", discussion(results, "summary"), markdown(counts(rows)), discussion(results, "README")]
    for paper, name in PAPERS.items():
        section = []
        for heading, subset in rows[rows["of"] == paper].groupby("kind"):
            section += [f"### {heading}", markdown(subset.drop(columns=["kind", "id", "of"]))]
        quiet = [id for id, each in found.items() if paper_of[id] == paper and not each.claims]
        absent = [text for id, text in missing.items() if paper_of[id] == paper]
        section += [f"Without a claim: {', '.join(_link(catalogue[id].title, id) for id in quiet)}."] if quiet else []
        section += [f"**Not run in full yet:** {', '.join(absent)}."] if absent else []
        paragraphs += [f"## {name}", *section] if section else []
    path = results.folder / "README.md"
    with writing(results.folder):
        path.write_text("\n\n".join(filter(None, paragraphs)) + "\n")
    return path


def _all_findings(
    catalogue: Mapping[str, Reproduction], results: Results, quick: bool
) -> tuple[dict[str, Findings], dict[str, str]]:
    """The findings of what was run in full; and what else was not, with the number of parts that were."""
    found, missing = {}, {}
    for id, each in catalogue.items():
        parts = each.parts(quick)
        done = sum(results.done(part, quick) for part in parts)
        if done == len(parts):
            found[id] = findings(each, results, quick)
        else:
            missing[id] = f"{_link(id, id)} ({done} of {len(parts)} parts)"
    return found, missing


def all_claims(claims: Mapping[str, Sequence[Claim]]) -> pd.DataFrame:
    """A row per claim of all pages; a star marks verdicts that fall if the rows of all pages are judged together."""
    rows = []
    pages = [id for id, members in claims.items() for _ in members]
    every = [claim for members in claims.values() for claim in members]
    for id, claim, together in zip(pages, every, judge(every), strict=True):
        star = "" if together.verdict is claim.verdict else "*"
        line = {"claim": claim.text, "paper": claim.paper, "ours": claim.ours, "verdict": f"{claim.verdict}{star}"}
        rows.append({**line, "page": _link(id, id), "kind": heading_of(claim), "id": id})
    return pd.DataFrame(rows, columns=["claim", "paper", "ours", "verdict", "page", "kind", "id"])


def counts(rows: pd.DataFrame) -> pd.DataFrame:
    """How many claims of each paper hold, do not hold and are open, of how many; our own questions are apart."""
    lines = []
    for paper, name in PAPERS.items():
        subset = rows[rows["of"] == paper]
        if len(subset):
            verdicts = subset.loc[subset["kind"] == CLAIMS, "verdict"].str.rstrip("*")
            numbers = [(verdicts == verdict).sum() for verdict in (Verdict.HOLDS, Verdict.FAILS, Verdict.OPEN)]
            lines.append([name, *numbers, len(subset) - len(verdicts)])
    return pd.DataFrame(lines, columns=["claims of", "hold", "do not hold", "not decided", "our own questions"])


def _link(text: str, id: str) -> str:
    return f"[{text}]({id}.md)"


def heading_of(claim: Claim) -> str:
    """Under which heading a claim stands."""
    return QUESTIONS if claim.paper == OWN else CLAIMS


def claims_table(claims: Sequence[Claim]) -> pd.DataFrame:
    """A row per claim; with the seeds that would decide those that are open, if there are some."""
    lines = [[claim.text, claim.paper, claim.ours, claim.verdict.value, claim.seeds] for claim in claims]
    table = pd.DataFrame(lines, columns=["claim", "paper", "ours", "verdict", "seeds to decide it"])
    return table if table.iloc[:, -1].any() else table.iloc[:, :-1]


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


def discussion(results: Results, name: str) -> str:
    """The text in `discussion/<name>.md`; nothing if there is none."""
    path = results.folder / "discussion" / f"{name}.md"
    return path.read_text().strip() if path.is_file() else ""
