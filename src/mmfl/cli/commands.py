"""The command line: run, compare, resume, report, and what there is to choose from."""

import errno
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.logging import RichHandler

import mmfl
from mmfl.cli import completion, deployment, listings
from mmfl.cli.console import console, on_stderr, say, show_json, show_rows
from mmfl.cli.help import Command, Group, examples
from mmfl.errors import LostProcessError, UserError, shorten

if TYPE_CHECKING:
    import torch

    from mmfl.runs.config_schema import Config
    from mmfl.runs.directory import RunDirectory

# Whatever imports torch, which takes seconds, is imported by the commands that need it: help and completion do not.

EXIT_CODES = """Exit codes:
  0    done
  1    an unexpected error (with a traceback), or output that nobody reads
  2    a mistake in the input, or a deployment that failed; stderr says what
  130  stopped by Ctrl-C; a run can be resumed
  143  ended by SIGTERM"""

app = typer.Typer(
    cls=Group,
    help="Multi-model federated learning: many models trained at once over one shared pool of clients.",
    epilog=f"{examples('mmfl compare', 'mmfl run lvr-3tasks --seeds 1', 'mmfl report runs/try')}\n\n{EXIT_CODES}",
    no_args_is_help=True,
    context_settings={"color": False if console.no_color or console.is_dumb_terminal else None},
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(
    cls=Group,
    help="Look at data and who holds it.",
    epilog=examples("mmfl data plot", "mmfl data plot lvr-3tasks --seed 1"),
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(listings.app)
app.add_typer(data_app, name="data")
_REFUSED = {  # by the system, for reasons that are not in the program
    errno.EACCES,
    errno.EDQUOT,
    errno.EFBIG,
    errno.ENAMETOOLONG,
    errno.ENOSPC,
    errno.EPERM,
    errno.EROFS,
}
DEFAULT_METHODS = "random,mmfl-lvr,full"

ConfigFile = Annotated[
    Path | None,
    typer.Argument(
        help="A TOML file or a preset's name; the embedded default without one.",
        show_default=False,
        autocompletion=completion.configurations,
    ),
]
DeploymentSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value: rounds=50, federation.clients=40, tasks.digits.lr=0.1.",
        autocompletion=completion.settings,
    ),
]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds, run in lockstep.")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds.")]
Out = Annotated[Path | None, typer.Option(help="Run directory; by default a new one in runs/.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Log to a tracker as well: tensorboard, mlflow or wandb.",
        autocompletion=completion.trackers,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="cpu or cuda; by default a GPU where there is one.", autocompletion=completion.devices),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show the final table only.")]


@app.command(
    cls=Command,
    epilog=examples(
        "mmfl run",
        "mmfl run experiment.toml --set method=mmfl-lvr --seeds 5",
        "mmfl run lvr-3tasks --rounds 20 --set tasks.fashion-a.lr=0.1 --out runs/try",
    ),
)
def run(
    file: ConfigFile = None,
    set_: DeploymentSettings = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    out: Out = None,
    track: Track = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train with one method."""
    from mmfl.runs import config as configuration

    config = configuration.read(file, set_ or (), seeds=seeds, rounds=rounds, device=device, trackers=track or None)
    start(config, out, quiet)


@app.command(
    cls=Command,
    epilog=examples(
        "mmfl compare",
        "mmfl compare experiment.toml --methods random,mmfl-lvr,full --seeds 5",
        "mmfl compare --methods random,mmfl-stalevre --rounds 50 --quiet",
    ),
)
def compare(
    file: ConfigFile = None,
    methods: Annotated[
        str, typer.Option(help="Methods to compare, separated by commas.", autocompletion=completion.methods)
    ] = DEFAULT_METHODS,
    set_: DeploymentSettings = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    out: Out = None,
    track: Track = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Train with several methods in lockstep."""
    from mmfl.runs import config as configuration

    names = [name.strip() for name in methods.split(",") if name.strip()]
    given = {"seeds": seeds, "rounds": rounds, "device": device, "methods": names, "trackers": track or None}
    config = configuration.read(file, set_ or (), **given)
    start(config, out, quiet)


@app.command(
    cls=Command,
    epilog=examples("mmfl resume runs/20260131-120000-mmfl-lvr", "mmfl resume runs/try --device cuda"),
)
def resume(
    directory: Annotated[Path, typer.Argument(help="The run directory.", autocompletion=completion.runs)],
    device: Device = None,
) -> None:
    """Go on with a run after a crash or Ctrl-C.

    The result is the same as if it had never stopped.
    """
    from mmfl.runs import config as configuration
    from mmfl.runs.directory import RunDirectory
    from mmfl.runs.layout import CONFIG
    from mmfl.runs.lock import check_free

    place = RunDirectory.open(directory)
    check_free(directory)  # again when it begins; here for an answer at once
    values = place.config()
    if values.get("source") == "python":
        raise UserError(
            f"run '{directory}' was started from Python: resume it there, with the same arguments and resume=True."
        )
    if values.get("source") == "deployment":
        return deployment.resume(directory, values)
    config = configuration.parse(values, str(directory / CONFIG))
    return carry_on(config, directory, device or config.device, lambda _: place, resume=True)


@app.command(
    cls=Command,
    epilog=examples(
        "mmfl report runs/try",
        "mmfl report runs/try runs/again --out both.html --export png,csv",
        "mmfl report runs/try --json",
    ),
)
def report(
    directories: Annotated[list[Path], typer.Argument(help="Run directories.", autocompletion=completion.runs)],
    out: Annotated[
        Path | None,
        typer.Option(help="The HTML file, or a folder for report.html; by default the first run's directory."),
    ] = None,
    export: Annotated[
        str,
        typer.Option(
            help="Write every figure too, into a folder beside: some of png,csv,parquet.",
            autocompletion=completion.exports,
        ),
    ] = "",
    json_: Annotated[bool, typer.Option("--json", help="Print the table as JSON, and write nothing.")] = False,
) -> None:
    """Write a run's report, one HTML file.

    Several runs are compared.
    """
    from mmfl.report import exports, figures, page
    from mmfl.report.display import show_results
    from mmfl.report.interactive import require_plotly
    from mmfl.report.sources import combine_sources, load_sources, note, repeated
    from mmfl.runs.layout import REPORT_PAGE

    formats = exports.formats_of(export) if export else []
    if json_:
        with on_stderr():
            table = combine_sources(load_sources(directories)).table()
        show_json(json.loads(table.reset_index().to_json(orient="records")))
        return
    require_plotly()
    path = page.place(out) if out else directories[0] / REPORT_PAGE
    sources = load_sources(directories)
    comparison = combine_sources(sources)
    if again := repeated(directories):
        say(f"given more than once, and counted once: {', '.join(map(str, again))}")
    if differing := note(sources):
        say(differing)
    show_results(console, comparison)
    page.write(comparison, path, sources)
    written = exports.export(figures.figures(comparison), path.with_suffix(""), formats)
    more = f", and {len(written)} files in {path.with_suffix('')}" if written else ""
    say(f"wrote {path}{more}")


@app.command(
    cls=Command,
    epilog=examples("mmfl dashboard", "mmfl dashboard experiments/faces --port 9000 --no-open"),
)
def dashboard(
    folder: Annotated[
        Path, typer.Argument(help="Folder with runs, at any depth.", autocompletion=completion.folders)
    ] = Path("runs"),
    port: Annotated[int | None, typer.Option(help="Port on loopback; by default 8421, or a free one.")] = None,
    host: Annotated[str, typer.Option(help="Loopback address.")] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = True,
) -> None:
    """Show runs in the browser while they go on.

    Ctrl-C ends it, and no run.
    """
    from mmfl.dashboard.server import Server

    with Server(folder, port, host) as server:
        say(f"runs in {folder}: {server.url} (Ctrl-C ends)")
        server.show(open_)
    say("dashboard ended")


@app.command(
    cls=Command,
    epilog=examples(
        "mmfl reproduce --list",
        "mmfl reproduce mfa-fig1 --quick",
        "mmfl reproduce table1-3tasks --device cuda",
    ),
)
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
    all_: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small form, within a minute each, on embedded data.")
    ] = False,
    part: Annotated[str, typer.Option(help="Run only the parts whose names match, such as 'lvr-5tasks/*'.")] = "*",
    redraw: Annotated[bool, typer.Option("--redraw", help="Render what has been run; train nothing.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Results folder; by default results/, or results-quick/ with --quick.")
    ] = None,
    device: Device = None,
    precision: Annotated[
        str,
        typer.Option(
            help="How it multiplies: float32, tf32 (GPU) or bfloat16 (CPU).", autocompletion=completion.precisions
        ),
    ] = "float32",
    json_: Annotated[bool, typer.Option("--json", help="With --list: print JSON instead of a table.")] = False,
) -> None:
    """Reproduce tables and figures of the papers."""
    from mmfl.engine.precision import check_precision
    from mmfl.papers import CATALOGUE
    from mmfl.papers import reproduce as experiments
    from mmfl.papers.pages import PAPERS, claims_table
    from mmfl.papers.reproduction import Trainer
    from mmfl.papers.store import Results
    from mmfl.report.display import Display, show_texts

    if list_:
        papers = {paper: name.rsplit(", ", 1)[0] for paper, name in PAPERS.items()}
        rows = [{"id": each.id, "title": each.title, "paper": papers[each.paper]} for each in CATALOGUE.values()]
        if json_:
            show_json(rows)
        else:
            show_rows(rows, "id", "what it is", "from")
        return
    if json_:
        raise UserError("reproduce: --json goes with --list.")
    if not ids and not all_:
        raise UserError("reproduce: nothing was named; expected ids, --all or --list.")
    made = experiments.chosen(list(CATALOGUE) if all_ else ids or [], CATALOGUE)
    results = Results(out or Path("results-quick" if quick else "results"))
    if not redraw:
        parts = experiments.parts_of(made, quick, part)
        trainer = Trainer(device, Display(console), check_precision(precision))
        experiments.train(parts, results, quick, trainer, lambda text: console.print(text, highlight=False))
    found = False
    for each, findings in experiments.render(made, results, quick):
        found = True
        show_texts(console, each.title, findings.table)
        if findings.claims:
            show_texts(console, "claims", claims_table(findings.claims))
        console.print(f"wrote {results.folder / each.id}.md and .png", highlight=False, soft_wrap=True)
    if not found:
        raise UserError(f"results folder '{results.folder}' has none of these yet; run without --redraw.")
    console.print(f"wrote {experiments.index(CATALOGUE, results, quick)}", highlight=False, soft_wrap=True)


@data_app.command(
    cls=Command,
    epilog=examples("mmfl data plot", "mmfl data plot lvr-3tasks --seed 1", "mmfl data plot experiment.toml --out who"),
)
def plot(
    file: ConfigFile = None,
    set_: DeploymentSettings = None,
    seed: Annotated[int, typer.Option(help="The seed whose partition to draw.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("data-plots"),
) -> None:
    """Draw who holds what: labels and volumes by client."""
    from mmfl.report import partition_plots
    from mmfl.runs.config import read

    if seed < 0:
        raise UserError(f"--seed is {seed}; expected 0 or above.")
    federation = read(file, set_ or ()).experiment().federation_of(seed)
    for path in partition_plots.draw(federation, out):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


app.add_typer(deployment.app)


def start(config: "Config", out: Path | None, quiet: bool) -> None:
    """A new run."""
    from mmfl.runs.directory import RunDirectory

    path = out or _new_directory(config)
    RunDirectory.refuse_used(path)
    carry_on(config, path, config.device, lambda device: RunDirectory.create(path, config.plain(), device), quiet)


def carry_on(
    config: "Config",
    path: Path,
    device: str | None,
    open_directory: Callable[["torch.device"], "RunDirectory"],
    quiet: bool = False,
    resume: bool = False,
) -> None:
    """Conducts the experiment in its directory, and shows it; where several processes do, the first one shows."""
    from mmfl.engine import Simulation
    from mmfl.report.display import Display, conclude, show_summary
    from mmfl.runs.experiment import conduct
    from mmfl.runs.listener import ListenerGroup
    from mmfl.trackers import make_trackers
    from mmfl.updates.world import leave

    engine = Simulation(device, config.engine, config.precision, privacy=config.privacy.build())
    world = engine.world
    console.quiet = not world.first
    path = Path(world.said_by_first(str(path)))
    experiment = config.experiment()
    listener = ListenerGroup([*make_trackers(config.trackers), *([] if quiet else [Display(console)])])
    federation = experiment.federation_of(experiment.seeds[0])
    seeds = len(experiment.seeds)
    summary = {
        "methods": ", ".join(method.name for method in experiment.methods),
        **federation.describe(),
        "budget": f"{config.rate * federation.capacity.sum():.1f} trainings a round (rate {config.rate:g})",
        "rounds": f"{config.rounds:,} x {seeds} seed{'s' if seeds > 1 else ''} on {engine.device}"
        + (f", {world.size} processes" if world.size > 1 else ""),
        "run": str(path),
    }
    if not quiet:
        show_summary(console, summary)
    begun = time.monotonic()
    try:
        comparison = conduct(experiment, engine, lambda: open_directory(engine.device), resume, listener)
    except KeyboardInterrupt:
        console.print(f"\nstopped; go on with: mmfl resume {path}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except LostProcessError as error:
        raise LostProcessError(f"{error} Go on with: mmfl resume {path}") from None
    if world.first:
        written = conclude(console, comparison, path, time.monotonic() - begun)
        if not quiet:
            say(written)
    leave()


def _new_directory(config: "Config") -> Path:
    named = [method if isinstance(method, str) else str(method.get("name")) for method in config.methods]
    name = named[0] if len(named) == 1 else "comparison"
    stem = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name.replace('/', '-')}"
    candidates = [stem, *(Path(f"{stem}-{n}") for n in range(2, 100))]
    return next(path for path in candidates if not path.exists())


def main() -> None:
    """Entry point: mistakes of the user end with one line and exit code 2."""
    # Read by torch when it is first used: its idle threads would otherwise take the time of others by waiting actively.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=console, show_time=False, show_path=False)],
    )
    completion.use_our_scripts()
    try:
        app(prog_name="mmfl")
    except UserError as error:
        if isinstance(error, LostProcessError) or os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    except OSError as error:
        if error.errno not in _REFUSED:
            raise
        place = f"'{shorten(error.filename)}': " if error.filename else ""
        print(f"error: {place}{error.strerror}.", file=sys.stderr, flush=True)
        sys.exit(2)


def version(show: bool) -> None:
    """Prints the version."""
    if show:
        print(f"mmfl {mmfl.__version__}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Multi-model federated learning."""


if __name__ == "__main__":
    main()
