"""Draws every figure of docs/methods, and docs/demo.png and timeline.png, from runs of this package: `python
docs/figures.py [name]`.

A function per page; the runs are small, so that all of them take a few minutes on two cores.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import numpy as np
import torch
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray

import mmfl
from mmfl.aggregation import MIFA, FedVARP, ServerMomentum, StaleVR, StaleVRE, Unbiased
from mmfl.aggregation.stale import Betas
from mmfl.allocation import Full, Groups, LossVariance, RandomClients, RandomProcessors, RoundRobinTasks
from mmfl.cli.training import DEFAULT_METHODS
from mmfl.federation.schedules import Decay, FrameDecay
from mmfl.local import PlainSGD, Prox, Scaffold
from mmfl.papers.measurements import Watch
from mmfl.report.clock import timeline
from mmfl.report.figures import main as main_figures
from mmfl.report.plots import draw, save
from mmfl.runs.config import read
from mmfl.runs.experiment import conduct
from mmfl.theory import Problem, RandomSplitBound, RotatingSplitBound, gain, gain_threshold
from mmfl.training import TrainingState
from mmfl.updates.expected_residuals import BINS_PER_OCTAVE
from mmfl.updates.memory import FadingMemory

FOLDER = Path(__file__).parent / "methods"
# Okabe and Ito's colours, which colour-blind readers can tell apart.
BLUE, ORANGE, GREEN, PINK, YELLOW, SKY, BLACK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
TRIMMING = ["trimmed-mean", "krum", "multi-krum"]
DASHES = ["-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))]


def panels(columns: int, width: float = 3.6, height: float = 3.0, **options: object) -> tuple[Figure, list[Axes]]:
    """A row of panels."""
    figure, axes = pyplot.subplots(
        1, columns, figsize=(width * columns, height), squeeze=False, layout="constrained", **options
    )
    return figure, list(axes[0])


def uneven_digits(names: Sequence[str], **options: object) -> list[mmfl.Task]:
    """Tasks on the real digits."""
    digits = mmfl.data.digits()
    return [mmfl.Task(name, mmfl.models.LogisticRegression, digits, **options) for name in names]


def few_labels() -> Callable:
    """Three of the ten digits for each client; a tenth of the clients have ten times as much data."""
    return mmfl.partition.labels(0.3, mmfl.partition.high_low(high=(80, 120), low=(8, 12)))


def who_trained_what(run: mmfl.Run) -> NDArray[np.float64]:
    """The task of each client in each round, [clients, rounds]; nan if it did not train."""
    raster = np.full((run.clients, len(run.records)), np.nan)
    for t, record in enumerate(run.records):
        for task, (clients, _) in record.drawn.items():
            raster[clients, t] = run.tasks.index(task)
    return raster


def draw_raster(axes: Axes, raster: NDArray[np.float64], tasks: int) -> None:
    """Clients x rounds, a colour per task."""
    colours = ListedColormap([BLUE, YELLOW, GREEN][:tasks])
    clients, rounds = raster.shape
    axes.imshow(
        raster,
        aspect="auto",
        cmap=colours,
        norm=BoundaryNorm(np.arange(tasks + 1) - 0.5, tasks),
        extent=(0.5, rounds + 0.5, clients - 0.5, -0.5),
        interpolation="nearest",
    )
    axes.set_xticks(np.arange(1, rounds + 1, 3 if rounds > 6 else 1))
    axes.set_xlabel("round")


def task_legend(figure: Figure, names: Sequence[str]) -> None:
    """The legend of a raster."""
    patches = [pyplot.Rectangle((0, 0), 1, 1, color=colour) for colour in (BLUE, YELLOW, GREEN)[: len(names)]]
    figure.legend(patches, names, loc="outside upper center", ncols=len(names), frameon=False)


def splits() -> Figure:
    """Who trains what, round by round."""
    tasks = uneven_digits(["task 0", "task 1", "task 2"], lr=0.3)
    federation = mmfl.Federation(tasks, clients=12)
    methods = {
        "fedavg (4 rounds a task)": {"method": "fedavg", "rounds": 4},
        "round-robin over tasks": mmfl.Method("turns", RoundRobinTasks(RandomClients()), mmfl.aggregation.Average()),
        "multi-fedavg": "multi-fedavg",
        "mfa-rand": "mfa-rand",
        "mfa-rr": "mfa-rr",
        "fedcluster": "fedcluster",
    }
    runs = mmfl.compare(federation, list(methods.values()), rounds=12, rate=0.75, evaluate_every=12).runs
    figure, axes = pyplot.subplots(2, 3, figsize=(9, 5), layout="constrained", sharex=True, sharey=True)
    for panel, title, run in zip(axes.flat, methods, runs, strict=True):
        draw_raster(panel, who_trained_what(run), 3)
        for end in (3.5, 6.5, 9.5) if title == "mfa-rr" else ():
            panel.axvline(end, color=BLACK, linewidth=1)
        panel.set_title(title)
    for panel in axes[0]:
        panel.set_xlabel("")
    for panel in axes[:, 0]:
        panel.set_ylabel("client")
    task_legend(figure, federation.task_names)
    return figure


def bandits() -> Figure:
    """How often each pair trains, against its share of the data."""
    model = partial(mmfl.models.LogisticRegression, inputs=60, classes=5)
    tasks = [
        mmfl.Task(f"task {s}", model, mmfl.data.synthetic(1, 1, clients=40, cap=600, seed=s), lr=0.05, batch_size=50)
        for s in range(2)
    ]
    federation = mmfl.Federation(tasks)
    share = federation.sizes / federation.sizes.sum(0)
    methods = [{"method": "multi-fedavg", "warm_up": True}, "ranklist-multi-ucb", "pareto-multi-ucb"]
    runs = mmfl.compare(federation, methods, rounds=100, rate=0.2, evaluate_every=100).runs
    figure, axes = panels(3, 3.2, sharey=True)
    for panel, run in zip(axes, runs, strict=True):
        for s, (colour, marker) in enumerate(((BLUE, "o"), (ORANGE, "x"))):
            panel.scatter(
                100 * share[:, s], run.participation.iloc[:, s], s=18, color=colour, marker=marker, label=run.tasks[s]
            )
        panel.set_xlabel("share of the task's data d, %")
        panel.set_title(run.method.partition("(")[0])
        panel.grid(alpha=0.3)
    axes[0].set_ylabel("rounds trained, of 100")
    axes[0].legend()
    return figure


def variance() -> Figure:
    """Probability by importance, and the resulting step size."""
    tasks = uneven_digits(["linear", "again"], lr=0.3, epochs=3)
    federation = mmfl.Federation(tasks, clients=40, partition=few_labels(), capacity=[1, 2])
    rate, seen = 0.4, {}

    class Watched(LossVariance):
        def allocate(self, view, state):
            allocation, state = super().allocate(view, state)
            seen[view.round] = view, allocation
            return allocation, state

    methods = ["random", mmfl.Method("mmfl-lvr", Watched(), Unbiased()), "lvr-systematic"]
    runs = mmfl.compare(federation, methods, rounds=60, rate=rate, evaluate_every=60).runs
    view, allocation = seen[10]
    importance = view.share * view.losses / view.capacity[:, None]
    full = np.isclose(allocation.probabilities.sum(1), 1)
    figure, axes = panels(2, 4.4, 3.2)
    for mask, colour, marker, label in (
        (~full, BLUE, "o", "processor shares the budget"),
        (full, ORANGE, "x", "processor always active"),
    ):
        axes[0].scatter(
            importance[mask], allocation.probabilities[mask], s=18, color=colour, marker=marker, label=label
        )
    axes[0].axhline(rate / 2, color="grey", linewidth=1, label="random: m / V / |S|")
    axes[0].set(xscale="log", yscale="log", xlabel="importance U = d f / B", ylabel="probability p", ylim=(0.02, 2.5))
    axes[0].set_yticks([0.03, 0.1, 0.3, 1], ["0.03", "0.1", "0.3", "1"], minor=False)
    axes[0].yaxis.set_minor_formatter(NullFormatter())
    axes[0].set_title("mmfl-lvr, round 10")
    axes[0].legend(fontsize=8)
    for run, colour, dash in zip(runs, (YELLOW, BLUE, GREEN), DASHES, strict=False):
        size = run.step_size.iloc[:, 0]
        axes[1].plot(size, dash, color=colour, linewidth=1.3, label=f"{run.method} (sd {size.std():.2f})")
    axes[1].axhline(1, color="grey", linewidth=0.8)
    axes[1].set(xlabel="round", ylabel="step size ||H||", title="first task")
    axes[1].set_ylim(0, 3.3)
    axes[1].legend(fontsize=8)
    for panel in axes:
        panel.grid(alpha=0.3)
    return figure


def stale() -> Figure:
    """The best beta of a client by round, and the distance of the weights from those of full participation."""
    tasks = uneven_digits(["linear"], lr=0.3, epochs=5)
    federation = mmfl.Federation(tasks, clients=40, partition=few_labels())
    methods = {
        "unbiased": Unbiased(),
        "FedVARP": FedVARP(),
        "MIFA": MIFA(),
        "StaleVR": StaleVR(),
        "StaleVRE": StaleVRE(),
    }
    sampled = [mmfl.Method(name, RandomProcessors(), rule) for name, rule in methods.items()]
    watch = Watch(lambda state: (state.weights[0].clone(), betas(state)))
    seeds = 5
    runs = mmfl.compare(
        federation, ["full", *sampled], rounds=60, rate=0.2, seeds=seeds, evaluate_every=60, listeners=[watch]
    )
    figure, axes = panels(2, 4.4, 3.2)
    weights = torch.stack([torch.stack([w for w, _ in seen]) for seen in watch.seen]).unflatten(1, (-1, seeds))
    stray = (weights[:, 1:] - weights[:, :1]).norm(dim=-1).mean(2)
    for name, line, colour, dash in zip(methods, stray.T, (YELLOW, SKY, PINK, BLUE, ORANGE), DASHES, strict=True):
        axes[1].plot(line, linestyle=dash, color=colour, linewidth=1.5, label=name)
    axes[1].set(xlabel="round", ylabel="||w - w of full||", title=f"distance to full participation ({seeds} seeds)")
    axes[1].legend(fontsize=8)
    client = 23
    for name, label, colour, dash in (("StaleVR", "best", BLUE, "-"), ("StaleVRE", "estimated", ORANGE, "--")):
        replica = seeds * (1 + list(methods).index(name))
        beta = np.array([seen[replica][1] for seen in watch.seen])[:, client]
        rounds = np.arange(len(beta)) + (name == "StaleVRE")  # an estimate is from the round before
        axes[0].plot(rounds, beta, linestyle=dash, color=colour, label=label)
    drawn = [r.round for r in runs.of("StaleVR")[0].records if client in r.drawn_clients("linear")]
    axes[0].plot(drawn, np.full(len(drawn), 1.12), "k|", label="the client trains")
    axes[0].set(xlabel="round", ylabel="beta", title=f"worth of the last update of client {client}")
    axes[0].legend(fontsize=8)
    for panel in axes:
        panel.grid(alpha=0.3)
    return figure


def betas(state: TrainingState) -> NDArray[np.float64]:
    """StaleVR's betas of the last round or StaleVRE's estimates for the next, [clients]; nan without an h."""
    memory = state.aggregation[0]
    if isinstance(memory, FadingMemory):
        return np.where(memory.last > 0, memory.beta(state.round + 1), np.nan)
    return memory.beta if isinstance(memory, Betas) else np.array([])


def three_kinds(dataset: mmfl.data.Dataset, clients: int, rng: np.random.Generator) -> mmfl.partition.Split:
    """A partition of the digits: the first third of the clients has 0 to 2, the second 3 to 5, the last 6 to 9."""
    kind_of_label = np.minimum(dataset.y.numpy() // 3, 2)
    owner = np.empty(len(dataset.y), dtype=np.int64)
    for kind in range(3):
        rows, members = np.flatnonzero(kind_of_label == kind), np.arange(clients)[kind::3] // 3 + kind * clients // 3
        owner[rows] = rng.permutation(np.resize(members, len(rows)))
    return mmfl.partition.Split(mmfl.partition.Shards.by_owner(owner, clients))


def forecast() -> Figure:
    """What is expected of last updates by their age, and the distance to full participation at the same cost."""
    tasks = uneven_digits(["linear"], lr=0.3, epochs=5)
    federation = mmfl.Federation(tasks, clients=40, partition=few_labels())
    methods = ["random", "fedvarp", "mifa", "forecast"]
    watch = Watch(lambda state: (state.weights[0].clone(), state.expected[0].ratios() if state.expected[0] else None))
    seeds = 10
    mmfl.compare(
        federation, ["full", *methods], rounds=100, rate=0.1, seeds=seeds, evaluate_every=100, listeners=[watch]
    )
    figure, axes = panels(2, 4.4, 3.2)
    ages = 2 ** (np.arange(6 * BINS_PER_OCTAVE) / BINS_PER_OCTAVE)
    for round_number, colour, dash in ((10, SKY, ":"), (30, BLUE, "--"), (100, BLACK, "-")):
        curve = np.mean([ratios for _, ratios in watch.seen[round_number][-seeds:]], axis=0)
        axes[0].plot(ages, curve[: len(ages)], dash, color=colour, label=f"after round {round_number}")
    axes[0].set_xscale("log", base=2)
    axes[0].set_xticks([1, 2, 4, 8, 16, 32, 64], ["1", "2", "4", "8", "16", "32", "64"])
    axes[0].set(xlabel="age of the last update, in rounds", ylabel="rho(age)", title="expected residual / ||h||")
    axes[0].set_ylim(bottom=0)
    weights = torch.stack([torch.stack([w for w, _ in seen]) for seen in watch.seen]).unflatten(1, (-1, seeds))
    stray = (weights[:, 1:] - weights[:, :1]).norm(dim=-1).mean(2)
    for name, line, colour, dash in zip(methods, stray.T, (YELLOW, SKY, PINK, BLUE), DASHES, strict=False):
        axes[1].plot(line, linestyle=dash, color=colour, linewidth=1.5, label=name)
    axes[1].set(xlabel="round", ylabel="||w - w of full||", title=f"distance to full participation ({seeds} seeds)")
    for panel in axes:
        panel.legend(fontsize=8)
        panel.grid(alpha=0.3)
    return figure


def groups() -> Figure:
    """The losses that are clustered, and the resulting rotation."""
    digits = mmfl.data.digits()
    tasks = [
        mmfl.Task("linear", mmfl.models.LogisticRegression, digits, lr=0.3, epochs=3),
        mmfl.Task("hidden", mmfl.models.Perceptron, digits, lr=0.3, epochs=3),
    ]
    federation = mmfl.Federation(tasks, clients=24, partition=three_kinds)
    seen = {}

    class Watched(Groups):
        def clustered(self, view, state):
            cycle = super().clustered(view, state)
            seen[view.round] = view.losses.copy(), cycle
            return cycle

    method = mmfl.Method("mmfl-group", Watched(), mmfl.aggregation.Average())
    run = mmfl.train(federation, method, rounds=15, rate=0.7, evaluate_every=15)
    figure, axes = panels(2, 4.4, 3.4, width_ratios=[1, 1.2])
    first = list(seen)[2]
    losses, cycle = seen[first]
    for cluster, (colour, marker) in enumerate(((PINK, "o"), (SKY, "s"), (BLACK, "x"), (ORANGE, "^"))):
        member = cycle.cluster == cluster
        if member.any():
            clients = np.flatnonzero(member)
            label = f"cluster {cluster}: {len(clients)} clients"
            axes[0].scatter(*losses[member].T, s=24, color=colour, marker=marker, label=label)
    axes[0].set(xlabel="loss of task linear", ylabel="loss of task hidden", title=f"C-step of round {first}")
    axes[0].legend(fontsize=8)
    axes[0].grid(alpha=0.3)
    draw_raster(axes[1], who_trained_what(run), 2)
    for start in list(seen)[1:]:
        axes[1].axvline(start - 0.5, color=BLACK, linewidth=1)
    for edge in (7.5, 15.5):
        axes[1].axhline(edge, color="grey", linewidth=0.8, linestyle=":")
    axes[1].set(ylabel="client", title="who trains what")
    task_legend(figure, run.tasks)
    return figure


class Chain:
    """The quadratic federation: client k has F_k(w) = w'A_k w / 2 - b_k'w, whose optimum and constants are known."""

    def __init__(self, clients: int, block: int, curvature: float):
        self.data, self.curvature = mmfl.data.quadratic(clients, block), curvature
        rows = self.data.x.double().numpy()
        self.A, self.b = rows[..., :-1] + curvature * np.eye(rows.shape[1]), rows[..., -1]
        self.optimum = np.linalg.solve(self.A.mean(0), self.b.mean(0))

    def task(self, name: str, **options: object) -> mmfl.Task:
        """A task that minimises the mean of the F_k."""
        model, value = (
            partial(mmfl.models.Quadratic, len(self.optimum), self.curvature),
            mmfl.objectives.value,
        )
        return mmfl.Task(name, model, self.data, loss=value, metric=value, **options)

    def watch(self) -> Watch:
        """A listener that records the mean distance of the tasks' weights from the optimum."""
        return Watch(lambda state: np.mean([norm(w.numpy() - self.optimum) for w in state.weights]))

    def losses(self, w: NDArray[np.float64]) -> NDArray[np.float64]:
        """F_k of each client at its own point, [clients]."""
        return np.einsum("ki,kij,kj->k", w, self.A, w) / 2 - (w * self.b).sum(1)

    def problem(self, steps: int, models: int) -> Problem:
        """The constants of the theorems; G is valid in a ball around the optimum that training does not leave."""
        eigenvalues, shared = np.linalg.eigvalsh(self.A), np.tile(self.optimum, (len(self.b), 1))
        L, mu = float(eigenvalues.max()), float(eigenvalues.min())
        steepest = float(np.linalg.norm(self.A @ self.optimum - self.b, axis=1).max())
        own = np.linalg.solve(self.A, self.b[..., None])[..., 0]
        return Problem(
            smoothness=L,
            strong_convexity=mu,
            gradient_bound=steepest + L * max(norm(self.optimum), steepest / mu),
            heterogeneity=float((self.losses(shared) - self.losses(own)).mean()),
            local_steps=steps,
            clients=len(self.b),
            models=models,
        )


def norm(vector: NDArray[np.float64]) -> float:
    """The length of a vector."""
    return float(np.linalg.norm(vector))


def local() -> Figure:
    """The distance to the optimum under several local rules and server optimisers."""
    chain = Chain(clients=12, block=2, curvature=0.05)
    parts = {
        "sgd": (PlainSGD(), Unbiased(), 0.1),
        "sgd, lr 10 / (t + 100)": (PlainSGD(), Unbiased(), Decay(10, 100)),
        "prox, mu = 1": (Prox(1.0), Unbiased(), 0.1),
        "sgd, server momentum 0.5": (PlainSGD(), ServerMomentum(Unbiased(), 1.0, 0.5), 0.1),
        "scaffold": (Scaffold(), Unbiased(), 0.1),
    }
    figure, axes = panels(2, 4.4, 3.3, sharey=True)
    for panel, allocation, seeds in zip(axes, (Full(), RandomProcessors()), (1, 5), strict=True):
        lines = zip(parts.items(), (YELLOW, BLUE, SKY, PINK, ORANGE), DASHES, strict=True)
        for (name, (rule, aggregation, lr)), colour, dash in lines:
            federation, watch = mmfl.Federation([chain.task("quadratic", lr=lr, epochs=10)]), chain.watch()
            method = mmfl.Method(name, allocation, aggregation, rule)
            mmfl.compare(federation, [method], 120, rate=0.5, seeds=seeds, evaluate_every=120, listeners=[watch])
            panel.semilogy(np.mean(watch.seen, axis=1), linestyle=dash, color=colour, linewidth=1.5, label=name)
        panel.set_xlabel("round")
        panel.grid(alpha=0.3)
    axes[0].set(ylabel="distance to the optimum", title="every client, every round")
    axes[1].set_title("half of the clients (5 seeds)")
    axes[0].legend(fontsize=8, loc="lower left")
    return figure


def theory() -> Figure:
    """Measured distances and their bounds, and the gain predicted by the bounds."""
    figure, axes = panels(2, 4.4, 3.3)
    draw_bounds(axes[0], Chain(clients=12, block=1, curvature=1.0), models=3, rounds=200)
    draw_gains(axes[1])
    for panel in axes:
        panel.grid(alpha=0.3)
        panel.legend(fontsize=8)
    return figure


def draw_bounds(axes: Axes, chain: Chain, models: int, rounds: int) -> None:
    """The bounds of both theorems, and runs with their learning rates."""
    problem, t = chain.problem(2, models), np.arange(1, rounds + 2)
    beta, start = 2 / problem.strong_convexity, norm(chain.optimum)
    for kind, method, colour in ((RandomSplitBound, "mfa-rand", BLUE), (RotatingSplitBound, "mfa-rr", ORANGE)):
        bound = kind(problem=problem, beta=beta, gamma=kind.caution * problem.smoothness * beta, start=start)
        # Averaging takes steps M times as long as Theorem 2 assumes.
        lr = Decay(beta, bound.gamma) if method == "mfa-rand" else FrameDecay(beta / models, bound.gamma, models)
        federation = mmfl.Federation([chain.task(f"model {s}", lr=lr, epochs=2) for s in range(models)])
        watch = chain.watch()
        mmfl.compare(federation, [method], rounds, 1.0, seeds=5, evaluate_every=rounds, listeners=[watch])
        axes.loglog(t, bound.error(t), "--", color=colour, label=f"{method}: bound")
        axes.loglog(t, np.mean(watch.seen, axis=1), color=colour, linewidth=0.9, label=f"{method}: measured")
    axes.set(xlabel="round", ylabel="distance to the optimum")
    axes.set_title(f"{models} models, {problem.clients} clients (5 seeds)")


def draw_gains(axes: Axes) -> None:
    """Theorem 3, below its threshold, at it and above."""
    problem = Problem(
        smoothness=10, strong_convexity=1, gradient_bound=1, heterogeneity=0, local_steps=2, clients=24
    )  # fmt: skip
    bound, models = RandomSplitBound(problem=problem, beta=2, gamma=100, start=0.59), [1, 2, 3, 4, 6, 8, 12]
    threshold = gain_threshold(bound)
    for epsilon, colour, marker in ((threshold / 2, GREEN, "o-"), (threshold, BLACK, "^-."), (0.585, PINK, "s--")):
        gains = [gain(bound.with_models(M), epsilon) for M in models]
        axes.plot(models, gains, marker, color=colour, label=f"eps = {epsilon:.3f}")
    axes.set(xlabel="models M", ylabel="gain g(M, eps) of mfa-rand")
    axes.set_title(f"Delta(1) = {bound.start}, threshold {threshold:.3f}")


def priorities() -> Figure:
    """The share of a task in all trainings, by its priority."""
    methods, values = ["random", "mmfl-lvr", "mfa-rr", "pareto-multi-ucb", "mmfl-group", "full"], [0.5, 1, 2, 4, 8]
    shares = []
    for value in values:
        A, *others = uneven_digits(["A", "B", "C"], lr=0.1)
        federation = mmfl.Federation([replace(A, priority=value), *others], 30, partition=few_labels())
        runs = mmfl.compare(federation, methods, rounds=75, rate=0.4, evaluate_every=75).runs
        shares.append([run.participation["A"].sum() / run.participation.sum().sum() for run in runs])
    figure, (axes,) = panels(1, 5.5, 3.3)
    for method, share, colour, dash, marker in zip(
        methods, np.transpose(shares), (BLUE, ORANGE, GREEN, PINK, SKY, BLACK), [*DASHES, "-"], "osx^vD", strict=True
    ):
        axes.plot(values, share, linestyle=dash, marker=marker, markersize=4, color=colour, label=method)
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.set(xlabel="priority of A; B and C have 1", ylabel="A's share of all trainings", ylim=(0, 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


def time() -> Figure:
    """Noise per second by deadline, and probability by seconds."""
    figure, axes = panels(2, 4.4, 3.2)
    x = np.geomspace(0.05, 6, 200)
    for shift, colour, dash in zip((0.1, 0.5, 2.0), (SKY, BLUE, GREEN), DASHES, strict=False):
        noise = (x + shift) / -np.expm1(-x)
        axes[0].plot(x + shift, noise / noise.min(), dash, color=colour, label=f"a = {shift:g} mu")
        axes[0].plot(x[noise.argmin()] + shift, 1.0, "o", color=colour, markersize=5)
    axes[0].set(xlabel="deadline D / mu", ylabel="noise per second, relative", ylim=(0.9, 3), title="deadline")
    axes[0].legend(fontsize=8)
    task = mmfl.Task("digits", mmfl.models.LogisticRegression, mmfl.data.digits(), lr=0.3)
    federation = mmfl.Federation([task], clients=300, devices=mmfl.devices.phones())
    view = federation.view(1, rate=0.1, seed=0)
    view = view.with_signals(losses=np.ones(view.sizes.shape))
    assert view.seconds is not None
    for cost, colour, marker in (("trainings", ORANGE, "x"), ("seconds", BLUE, "o")):
        p = LossVariance(cost=cost).probabilities(view)
        axes[1].scatter(view.seconds, p, s=10, color=colour, marker=marker, label=f"cost = {cost!r}")
    axes[1].set(xscale="log", yscale="log", xlabel="seconds of a training", ylabel="probability p", title="phones")
    axes[1].legend(fontsize=8)
    for panel in axes:
        panel.grid(alpha=0.3)
    return figure


def robust() -> Figure:
    """The accuracy of aggregations by the share of clients that attack, IID and with three labels a client."""
    rules = {"average": {}, "median": {}, "geometric-median": {}, **{name: {"share": 0.4} for name in TRIMMING}}
    methods = [
        {"name": name, "allocation": "random-clients", "aggregation": {"name": name, **options}}
        for name, options in rules.items()
    ]
    task = mmfl.Task("digits", mmfl.models.LogisticRegression, mmfl.data.digits(), lr=0.3, epochs=3)
    shares = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    figure, axes = panels(2, 4.4, 3.2, sharey=True)
    partitions = {"IID": mmfl.partition.iid(), "three labels a client": mmfl.partition.labels(0.3)}
    for panel, (title, partition) in zip(axes, partitions.items(), strict=True):
        reached = [
            mmfl.compare(
                partial(attacked_federation, task, partition, share), methods, 30, 0.5, seeds=3, evaluate_every=30
            ).table()["mean"]
            for share in shares
        ]
        colours = (BLACK, ORANGE, BLUE, GREEN, PINK, SKY)
        for name, colour, dash in zip(rules, colours, [*DASHES, (0, (1, 1))], strict=True):
            accuracy = [table[name] for table in reached]
            panel.plot(shares, accuracy, linestyle=dash, color=colour, linewidth=1.5, label=name)
        panel.set(xlabel="share of clients that attack", title=title)
        panel.grid(alpha=0.3)
    axes[0].set(ylabel="accuracy")
    axes[0].legend(fontsize=8)
    return figure


def attacked_federation(
    task: mmfl.Task, partition: mmfl.partition.Partition, share: float, seed: int
) -> mmfl.Federation:
    """Forty clients, of which a share send -5 times their update."""
    attack = mmfl.attacks.SignFlip(share, factor=5.0)
    return mmfl.Federation([task], 40, partition=partition, attack=attack, seed=seed)


def demo() -> Figure:
    """Test metrics of the embedded experiment, as `make demo` trains it."""
    config = read("demo", methods=DEFAULT_METHODS.split(","))
    overview, *_ = main_figures(conduct(config.experiment(), mmfl.engine.Simulation("cpu")))
    return draw(replace(overview, panels=[panel for panel in overview.panels if panel.y_label == "test metric"]))


def clock() -> Figure:
    """Who trained what when, at a barrier and under a deadline."""
    tasks = [mmfl.Task(name, mmfl.models.LogisticRegression, mmfl.data.digits(), lr=0.5) for name in ("one", "two")]
    devices = mmfl.devices.shifted_exponential(mean=20.0, shift=10.0, factors=[1, 1, 3])
    federation = mmfl.Federation(tasks, clients=30, capacity=[1, 2], devices=devices, seed=0)
    pace = {"name": "deadline", "seconds": 45, "over": 1.3}
    methods = [{"method": "random", "name": "barrier"}, {"method": "random", "name": "deadline of 45 s", "pace": pace}]
    drawn = timeline(mmfl.compare(federation, methods, rounds=6, rate=0.3))
    assert drawn is not None
    return draw(drawn)


FIGURES: dict[str, Callable[[], Figure]] = {
    "splits": splits,
    "bandits": bandits,
    "variance": variance,
    "stale": stale,
    "forecast": forecast,
    "groups": groups,
    "local": local,
    "robust": robust,
    "time": time,
    "theory": theory,
    "priorities": priorities,
    "../demo": demo,
    "../timeline": clock,
}


def main(names: Sequence[str]) -> None:
    """Draws the named figures, or all."""
    for name in names or FIGURES:
        path = save(FIGURES[name](), FOLDER / f"{name}.png", dpi=110)
        print(name, path.stat().st_size // 1000, "KB")


if __name__ == "__main__":
    main(sys.argv[1:])
