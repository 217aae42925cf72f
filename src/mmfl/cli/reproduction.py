"""The command that reproduces the papers' tables and figures."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from mmfl.cli import completion
from mmfl.cli.console import console, say, show_rows
from mmfl.cli.help import command
from mmfl.cli.options import Device
from mmfl.errors import UserError

app = typer.Typer(rich_markup_mode=None)


@command(app, "mmfl reproduce --list", "mmfl reproduce mfa-fig1 --quick", "mmfl reproduce table1-3tasks --device cuda")
def reproduce(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables and figures, such as table1-3tasks.",
            show_default=False,
            autocompletion=completion.reproductions,
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List what there is.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Reproduce all of them.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version, within a minute each, on embedded data.")
    ] = False,
    part: Annotated[str, typer.Option(help="Run only the parts whose names match, such as 'lvr-5tasks/*'.")] = "*",
    redraw: Annotated[bool, typer.Option("--redraw", help="Render what has been run; train nothing.")] = False,
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="Add seeds until the papers' claims are decided.")
    ] = False,
    max_seeds: Annotated[
        int | None, typer.Option(help="With --until-decided: go on to at most so many seeds (20).", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder; by default results/, or results-quick/ with --quick.")
    ] = None,
    device: Device = None,
    precision: Annotated[
        str,
        typer.Option(
            help="Precision of products: float32, tf32 (GPU) or bfloat16 (CPU).", autocompletion=completion.precisions
        ),
    ] = "float32",
    json_: Annotated[bool, typer.Option("--json", help="With --list: print JSON instead of a table.")] = False,
) -> None:
    """Reproduce tables and figures of the papers."""
    from mmfl.engine.precision import check_precision
    from mmfl.papers import CATALOGUE, pages
    from mmfl.papers import reproduce as experiments
    from mmfl.papers.reproduction import PAPERS, PaperTrainer
    from mmfl.papers.store import Results
    from mmfl.report.display import Display, show_texts

    if list_:
        papers = {paper: name.rsplit(", ", 1)[0] for paper, name in PAPERS.items()}
        rows = [{"id": each.id, "title": each.title, "paper": papers[each.paper]} for each in CATALOGUE.values()]
        show_rows(rows, "id", "what it is", "from", as_json=json_)
        return
    if json_:
        raise UserError("reproduce: --json goes with --list.")
    if not ids and not all_:
        raise UserError("reproduce: nothing was named; expected ids, --all or --list.")
    if until_decided and (redraw or part != "*"):
        raise UserError("reproduce: --until-decided trains all parts; it goes with neither --redraw nor --part.")
    if max_seeds is not None and not until_decided:
        raise UserError("reproduce: --max-seeds goes with --until-decided.")
    chosen = experiments.select(list(CATALOGUE) if all_ else ids or [], CATALOGUE)
    results = Results(out or Path("results-quick" if quick else "results"))
    if redraw:
        experiments.check_anything_was_run(chosen, results, quick)
    else:
        parts = experiments.parts_of(chosen, quick, part)
        trainer = PaperTrainer(device, Display(console), check_precision(precision))
        talk = partial(console.print, highlight=False)
        if until_decided:
            experiments.train_until_decided(
                chosen, results, quick, trainer, talk, 20 if max_seeds is None else max_seeds
            )
        else:
            experiments.train(parts, results, quick, trainer, talk)
    rendered = list(experiments.render(chosen, results, quick))
    for each, findings in rendered:
        show_texts(console, each.title, findings.table)
        if findings.claims:
            show_texts(console, "claims", pages.claims_table(findings.claims))
        say(f"wrote {results.folder / each.id}.md and .png")
    done = [each.id for each, _ in rendered]
    for name in (each.id for each in chosen if each.id not in done):
        say(f"{name}: not run in full yet; its page says what is missing")
    say(f"wrote {pages.index(CATALOGUE, results, quick)}")
