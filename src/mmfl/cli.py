"""The command line: run, compare, resume, report, and what there is to choose from."""

import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape

import mmfl
from mmfl import config as configuration
from mmfl import presets
from mmfl.config import Config
from mmfl.data import SOURCES
from mmfl.display import Display, conclude, listing, show_results, show_summary, show_texts
from mmfl.engine import Simulation
from mmfl.engine.precision import checked
from mmfl.errors import UserError
from mmfl.experiment import conduct
from mmfl.flower import commands as deployment
from mmfl.methods import METHODS
from mmfl.run import RunDirectory
from mmfl.world import LostProcessError, leave

app = typer.Typer(
    help="Multi-model federated learning: many models trained at once over one shared pool of clients.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="Look at data and who holds it.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
console = Console(width=None if sys.stdout.isatty() else 120)
DEFAULT_METHODS = "random,mmfl-lvr,full"

ConfigFile = Annotated[
    Path | None,
    typer.Argument(help="A TOML file or a preset's name; the embedded default without one.", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change a value: rounds=50, federation.clients=40, tasks.digits.lr=0.1."),
]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds, run in lockstep.")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds.")]
Out = Annotated[Path | None, typer.Option(help="Run directory; by default a new one in runs/.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU where there is one.")]


@app.command()
def run(
    file: ConfigFile = None,
    set_: Settings = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    out: Out = None,
    device: Device = None,
) -> None:
    """Train with one method. Example: mmfl run experiment.toml --set method=mmfl-lvr --seeds 5."""
    config = configuration.read(file, set_ or (), seeds=seeds, rounds=rounds, device=device)
    start(config, out)


@app.command()
def compare(
    file: ConfigFile = None,
    methods: Annotated[str, typer.Option(help="Methods to compare, separated by commas.")] = DEFAULT_METHODS,
    set_: Settings = None,
    seeds: Seeds = None,
    rounds: Rounds = None,
    out: Out = None,
    device: Device = None,
) -> None:
    """Train with several methods in lockstep. Example: mmfl compare --methods random,mmfl-lvr,full."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    config = configuration.read(file, set_ or (), seeds=seeds, rounds=rounds, device=device, methods=names)
    start(config, out)


@app.command()
def resume(directory: Annotated[Path, typer.Argument(help="The run directory.")], device: Device = None) -> None:
    """Go on with a run after a crash or Ctrl-C: same result as if it had never stopped."""
    place = RunDirectory.open(directory)
    values = place.config()
    if values.get("source") == "python":
        raise UserError(
            f"run '{directory}' was started from Python: resume it there, with the same arguments and resume=True."
        )
    if values.get("source") == "deployment":
        return deployment.resume(directory, values)
    config = configuration.parse(values, str(directory / "config.toml"))
    return carry_on(config, directory, device or config.device, lambda: place, resume=True)


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(help="Run directories.")],
    out: Annotated[
        Path | None,
        typer.Option(help="The HTML file, or a folder for report.html; by default the first run's directory."),
    ] = None,
    export: Annotated[
        str, typer.Option(help="Write every figure too, into a folder beside: some of png,csv,parquet.")
    ] = "",
) -> None:
    """Write a run's report, one HTML file. Several runs are compared. Example: mmfl report runs/a runs/b."""
    from mmfl.report import exports, figures, page
    from mmfl.report.gather import gather, side_by_side
    from mmfl.report.interactive import require_plotly

    formats = exports.formats_of(export) if export else []
    require_plotly()
    sources = gather(directories)
    comparison = side_by_side(sources)
    show_results(console, comparison)
    place = out or directories[0]
    path = page.write(comparison, place if place.suffix == ".html" else place / "report.html", sources)
    written = exports.export(figures.figures(comparison), path.with_suffix(""), formats)
    more = f", and {len(written)} files in {path.with_suffix('')}" if written else ""
    console.print(f"wrote {path}{more}", highlight=False, soft_wrap=True)


@app.command()
def dashboard(
    folder: Annotated[Path, typer.Argument(help="Folder with runs, at any depth.")] = Path("runs"),
    port: Annotated[int | None, typer.Option(help="Port on loopback; by default 8421, or a free one.")] = None,
    host: Annotated[str, typer.Option(help="Loopback address.")] = "127.0.0.1",
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser.")] = True,
) -> None:
    """Show runs in the browser while they go on. Example: mmfl dashboard runs."""
    from mmfl.dashboard.server import Server

    with Server(folder, port, host) as server:
        console.print(f"runs in {folder}: {server.url} (Ctrl-C ends)", highlight=False, soft_wrap=True)
        server.show(open_)
    console.print("dashboard ended")


@app.command()
def reproduce(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Tables and figures, such as table1-3tasks.", show_default=False)
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
        str, typer.Option(help="How it multiplies: float32, tf32 (GPU) or bfloat16 (CPU).")
    ] = "float32",
) -> None:
    """Reproduce tables and figures of the papers. Example: mmfl reproduce mfa-fig1 --quick."""
    from mmfl.experiments import CATALOGUE
    from mmfl.experiments import reproduce as experiments
    from mmfl.experiments.pages import PAPERS, claims_table
    from mmfl.experiments.reproduction import Trainer
    from mmfl.experiments.store import Results

    if list_:
        table = listing("id", "what it is", "from")
        for each in CATALOGUE.values():
            table.add_row(each.id, escape(each.title), escape(PAPERS[each.paper].rsplit(", ", 1)[0]))
        console.print(table)
        return
    if not ids and not all_:
        raise UserError("reproduce: nothing was named; expected ids, --all or --list.")
    made = experiments.chosen(list(CATALOGUE) if all_ else ids or [], CATALOGUE)
    results = Results(out or Path("results-quick" if quick else "results"))
    if not redraw:
        parts = experiments.parts_of(made, quick, part)
        trainer = Trainer(device, Display(console), checked(precision))
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


@app.command()
def methods() -> None:
    """List the methods, with what they ask of clients and where they are from."""
    table = listing("method", "what it does", "train", "evaluate", "stored", "from")
    for name, entry in METHODS.items():
        table.add_row(name, entry.summary, entry.trains, entry.evaluates, entry.stores, entry.paper)
    console.print(table)


@app.command()
def datasets() -> None:
    """List the data sets, and the papers' federations that can be run by name."""
    table = listing("data", "what it is")
    for name, source in SOURCES.items():
        table.add_row(name, escape((source.__doc__ or "").strip().split("\n")[0]))
    console.print(table)
    table = listing("preset", "what it is", "tasks", "clients", "rounds", "seeds")
    for name in presets.NAMES:
        known = configuration.read(name)
        numbers = (len(known.tasks), known.federation.clients, known.rounds, known.seeds)
        table.add_row(name, escape(presets.summary(name)), *map(str, numbers))
    console.print(table)


@data_app.command()
def plot(
    file: ConfigFile = None,
    set_: Settings = None,
    seed: Annotated[int, typer.Option(help="The seed whose partition to draw.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("data-plots"),
) -> None:
    """Draw who holds what: labels and volumes by client. Example: mmfl data plot lvr-3tasks."""
    from mmfl.report import partition_plots

    federation = configuration.read(file, set_ or ()).experiment().federation_of(seed)
    for path in partition_plots.draw(federation, out):
        console.print(f"wrote {path}", highlight=False, soft_wrap=True)


for command in (deployment.deploy, deployment.link, deployment.node, deployment.keys):
    app.command()(command)


def start(config: Config, out: Path | None) -> None:
    """A new run."""
    path = out or _new_directory(config)
    carry_on(config, path, config.device, lambda: RunDirectory.create(path, config.plain()))


def carry_on(
    config: Config, path: Path, device: str | None, open_directory: Callable[[], RunDirectory], resume: bool = False
) -> None:
    """Conducts the experiment in its directory, and shows it; where several processes do, the first one shows."""
    engine = Simulation(device, config.engine, config.precision, privacy=config.privacy.build())
    world = engine.world
    console.quiet = not world.first
    path = Path(world.said_by_first(str(path)))
    experiment = config.experiment()
    federation = experiment.federation_of(experiment.seeds[0])
    seeds = len(experiment.seeds)
    show_summary(
        console,
        {
            "methods": ", ".join(method.name for method in experiment.methods),
            **federation.describe(),
            "budget": f"{config.rate * federation.capacity.sum():.1f} trainings a round (rate {config.rate:g})",
            "rounds": f"{config.rounds:,} x {seeds} seed{'s' if seeds > 1 else ''} on {engine.device}"
            + (f", {world.size} processes" if world.size > 1 else ""),
            "run": str(path),
        },
    )
    begun = time.monotonic()
    try:
        comparison = conduct(experiment, engine, open_directory, resume, Display(console))
    except KeyboardInterrupt:
        console.print(f"\nstopped; go on with: mmfl resume {path}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except LostProcessError as error:
        raise LostProcessError(f"{error} Go on with: mmfl resume {path}") from None
    if world.first:
        conclude(console, comparison, path, time.monotonic() - begun)
    leave()


def _new_directory(config: Config) -> Path:
    named = [method if isinstance(method, str) else str(method.get("name")) for method in config.methods]
    name = named[0] if len(named) == 1 else "comparison"
    stem = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{name.replace('/', '-')}"
    candidates = [stem, *(Path(f"{stem}-{n}") for n in range(2, 100))]
    return next(path for path in candidates if not path.exists())


def main() -> None:
    """Entry point: mistakes of the user end with one line and exit code 2."""
    logging.basicConfig(
        level=logging.WARNING,
        format="%(message)s",
        handlers=[RichHandler(console=console, show_time=False, show_path=False)],
    )
    try:
        app()
    except UserError as error:
        if isinstance(error, LostProcessError) or os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr, flush=True)
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
