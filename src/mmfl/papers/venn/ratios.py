"""Job completion times of Venn and other schedules on the embedded phones, as ratios."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from mmfl.papers.evidence import fact, greater, spread
from mmfl.papers.reproduction import NOTES, OWN, Findings, Frames, PaperTrainer, Part, reproduction
from mmfl.papers.venn.devices import ELIGIBLE, REQUIREMENTS, CheckIns
from mmfl.papers.venn.jobs import JobList, JobSimulation
from mmfl.papers.venn.schedules import SCHEDULES
from mmfl.randomness import Purpose, generator
from mmfl.report.plots import COLOURS, panels

_JOBS = 50
_RATE = 4.0  # check-ins a second: the mean completion time of fifo is then about the printed one
PRINTED = {"fifo": 4_233_962, "smallest request": 3_445_766, "venn": 3_133_771}
"""Mean job completion times in seconds: even workload, no tier matching (Venn's repository)."""
_SEEDS, _SCALE = range(12), 100
_QUICK_SEEDS, _QUICK_SCALE = range(2), 800


def parts(quick: bool) -> Sequence[Part]:
    """All schedules over the same jobs and check-ins, by seed."""
    seeds = _QUICK_SEEDS if quick else _SEEDS

    def run(trainer: PaperTrainer) -> Frames:
        own = seeds if trainer.seeds is None else trainer.seeds
        return {"jobs": pd.concat([simulated(seed, _QUICK_SCALE if quick else _SCALE) for seed in own])}

    return [Part("venn", 0, seeds, run)]


def made(seed: int, scale: float) -> JobList:
    """Fifty jobs of Venn's simulation; rounds and gaps between arrivals are divided by the scale, which leaves their
    ratio as it is. Participants and rounds are log-uniform within the range of Venn's templates."""
    rng = generator(seed, Purpose.ARRIVALS, 2)

    def between(low: float, high: float) -> np.ndarray:
        return np.exp(rng.uniform(np.log(low), np.log(high), _JOBS))

    return JobList(
        arrival=(3600 + np.cumsum(rng.exponential(1800, _JOBS))) / scale,
        demand=between(20, 1500).astype(np.int64),
        rounds=np.ceil(between(530, 4000) / scale).astype(np.int64),
        deadline=rng.choice([300.0, 600.0, 1000.0], _JOBS),
        group=rng.permutation(np.arange(_JOBS) % len(REQUIREMENTS)),
    )


def simulated(seed: int, scale: float) -> pd.DataFrame:
    """A row for each job and schedule: its completion time on the clock of the unscaled jobs."""
    jobs = made(seed, scale)
    check_ins = CheckIns.poisson(_RATE, 2 * int(jobs.demand @ jobs.rounds) + 100_000, seed)
    tables = []
    for name, schedule in SCHEDULES.items():
        outcome = JobSimulation(jobs, check_ins, ELIGIBLE, schedule, seed).run()
        columns = {"seconds": outcome.seconds * scale, "failed": outcome.failed, "ineligible": outcome.ineligible}
        group = np.array(REQUIREMENTS)[jobs.group]
        tables.append(pd.DataFrame({"seed": seed, "schedule": name, "requirement": group, **columns}))
    return pd.concat(tables)


def find(frames: Frames) -> Findings:
    """Mean completion times, and how many times as long as Venn's."""
    jobs = frames["jobs"]
    mean = jobs.pivot_table(index="seed", columns="schedule", values="seconds")
    ratio = mean.div(mean["venn"], axis=0)
    lines = [
        [
            name,
            f"{PRINTED[name]:,}" if name in PRINTED else "",
            f"{mean[name].mean():,.0f}",
            f"{PRINTED[name] / PRINTED['venn']:.3f}" if name in PRINTED else "",
            spread(ratio[name]),
        ]
        for name in SCHEDULES
    ]
    columns = ["schedule", "printed, s", "ours, s", "printed over Venn", "ours over Venn"]
    wrong = int(jobs["ineligible"].sum())
    claims = [
        greater("Venn's jobs end sooner than fifo's (ratio above 1)", "1.351", ratio["fifo"], 1.0),
        greater("Venn's jobs end sooner than with the smallest request first", "1.100", ratio["smallest request"], 1.0),
        greater("They end sooner than with random matching", OWN, ratio["random"], 1.0),
        greater("They end sooner than with SRSF that knows all rounds to come", OWN, ratio["srsf"], 1.0),
        greater("Venn by remaining service ends sooner than Venn", OWN, 1.0, ratio["venn, by service"]),
        greater("It ends sooner than SRSF", OWN, ratio["srsf"], ratio["venn, by service"]),
        fact("No device serves a job it is not eligible for", OWN, f"{wrong} assignments", wrong == 0),
    ]
    return Findings(pd.DataFrame(lines, columns=columns), claims, [NOTES["venn_readings"]])


def draw(frames: Frames) -> Figure:
    """Completion time over Venn's by schedule, and mean completion time by requirement."""
    jobs = frames["jobs"]
    mean = jobs.pivot_table(index="seed", columns="schedule", values="seconds")
    figure, (left, right) = panels(2, columns=2, height=3.4)
    names = list(SCHEDULES)
    left.boxplot([(mean[name] / mean["venn"]).to_numpy() for name in names], orientation="vertical")
    left.set_xticks(range(1, len(names) + 1), names, rotation=25, fontsize=7)
    left.set(ylabel="completion time over Venn's")
    left.axhline(1.0, color="grey", linewidth=0.8)
    table = jobs.pivot_table(index="requirement", columns="schedule", values="seconds").loc[list(REQUIREMENTS)]
    for n, name in enumerate(names):
        right.plot(REQUIREMENTS, table[name] / 1e6, "o-", color=COLOURS[n], label=name, markersize=3)
    right.set(ylabel="mean completion time, million s")
    right.tick_params(axis="x", labelsize=7)
    right.legend(fontsize=7, frameon=False)
    return figure


REPRODUCTIONS = (reproduction("venn-ratios", parts, find, draw),)
