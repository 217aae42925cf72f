"""Pages of results: Markdown and a figure for each table and figure of the papers, and one page with all claims."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from mmfl.papers.reproduction import Claim, Findings, Frames, Paper, Reproduction
from mmfl.papers.store import About
from mmfl.report.plots import save

PAPERS: dict[Paper, str] = {
    "mfa": "Bhuyan, Moharir & Joshi 2022, Multi-Model Federated Learning with Provable Guarantees",
    "ucb": "Bhuyan & Moharir 2022, Multi-Model Federated Learning",
    "slides": "Zhang et al. 2024, Towards Optimal Heterogeneous Client Sampling (slides)",
    "variance": "Zhang et al. 2025, Towards Optimal Heterogeneous Client Sampling in Multi-Model Federated Learning",
    "group": "Gong et al., Group-based Client Sampling in Multi-Model Federated Learning",
}


def write(
    folder: Path, reproduction: Reproduction, findings: Findings, frames: Frames, abouts: Sequence[About | None]
) -> None:
    """Writes the page of a table or figure, `<id>.md` with `<id>.png`; it includes the text in `discussion/<id>.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    save(reproduction.draw(frames), folder / f"{reproduction.id}.png", dpi=100)
    abouts_of_parts = [about for about in abouts if about is not None]
    quick = " --quick" if any(about.quick for about in abouts_of_parts) else ""
    missing = len(abouts) - len(abouts_of_parts)
    paragraphs = [
        f"# {reproduction.title}",
        f"{PAPERS[reproduction.paper]}. Repeat with `mmfl reproduce {reproduction.id}{quick}`; "
        "all pages: [README.md](README.md).",
        reproduction.setting,
        *([f"**{missing} of {len(abouts)} parts were not run**, so this is not complete."] if missing else []),
        f"![{reproduction.title}]({reproduction.id}.png)",
        "## Numbers",
        markdown(findings.table),
        *findings.notes,
        *(["## Claims", markdown(claims_table(findings.claims))] if findings.claims else []),
        *(["## Discussion", discussion] if (discussion := _discussion(folder, reproduction.id)) else []),
        "## How it was run",
        markdown(runs_table(abouts_of_parts)),
    ]
    (folder / f"{reproduction.id}.md").write_text("\n\n".join(paragraphs) + "\n")


def write_index(
    folder: Path, claims: Sequence[tuple[Reproduction, Sequence[Claim]]], missing: Sequence[str] = ()
) -> None:
    """Writes `README.md`: the text in `discussion/README.md`, all claims and verdicts, and what was not run in full."""
    paragraphs = ["# Results", *filter(None, [_discussion(folder, "README")])]
    if missing:
        paragraphs.append(f"**Not run in full yet:** {', '.join(missing)}.")
    for paper, name in PAPERS.items():
        of_paper = [(reproduction, found) for reproduction, found in claims if reproduction.paper == paper]
        tables = [
            claims_table(found).assign(page=f"[{reproduction.id}]({reproduction.id}.md)")
            for reproduction, found in of_paper
            if found
        ]
        if tables:
            paragraphs += [f"## {name}", markdown(pd.concat(tables))]
        without_claims = [
            f"[{reproduction.title}]({reproduction.id}.md)" for reproduction, found in of_paper if not found
        ]
        if without_claims:
            paragraphs.append(f"Without a claim: {', '.join(without_claims)}.")
    (folder / "README.md").write_text("\n\n".join(paragraphs) + "\n")


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


def markdown(table: pd.DataFrame) -> str:
    """A frame as a Markdown table, without its index.

    >>> print(markdown(pd.DataFrame({"method": ["full"], "ours": [1.0]})))
    | method | ours |
    |---|---|
    | full | 1.0 |
    """
    lines = [list(map(str, table.columns)), ["---"] * len(table.columns), *table.astype(object).to_numpy().tolist()]
    body = ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([body[0], body[1].replace(" ", ""), *body[2:]])


def _ranges(seeds: Sequence[int]) -> str:
    whole = list(seeds) == list(range(min(seeds), max(seeds) + 1))
    return f"{min(seeds)} to {max(seeds)}" if whole and len(seeds) > 2 else ", ".join(map(str, seeds))


def _discussion(folder: Path, name: str) -> str:
    path = folder / "discussion" / f"{name}.md"
    return path.read_text().strip() if path.is_file() else ""
