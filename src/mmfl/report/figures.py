"""All figures of runs, in the order of a report."""

from collections.abc import Callable

from mmfl.report.averages import average
from mmfl.report.clock import seconds, timeline, utilisation
from mmfl.report.costs import costs, efficiency, faults
from mmfl.report.figure import Figure
from mmfl.report.metrics import client_distribution, clients, confusion, metrics
from mmfl.report.participation import clusters, participation, probabilities, seen
from mmfl.report.scores import accuracy, differences, loss, relative
from mmfl.report.steps import beta, step_size, variances
from mmfl.runs.results import Comparison

FIGURES: dict[str, Callable[[Comparison], Figure | None]] = {
    "differences": differences,
    "accuracy": accuracy,
    "seconds": seconds,
    "average": average,
    "relative": relative,
    "loss": loss,
    "metrics": metrics,
    "clients": clients,
    "client_distribution": client_distribution,
    "confusion": confusion,
    "efficiency": efficiency,
    "timeline": timeline,
    "utilisation": utilisation,
    "participation": participation,
    "seen": seen,
    "probabilities": probabilities,
    "step_size": step_size,
    "variances": variances,
    "beta": beta,
    "clusters": clusters,
    "costs": costs,
    "faults": faults,
}


def figures(comparison: Comparison) -> list[Figure]:
    """Every figure that has something to show."""
    return [figure for make in FIGURES.values() if (figure := make(comparison)) is not None]


def main(comparison: Comparison) -> list[Figure]:
    """The figures that are drawn as pictures where no page is written: an overview, and each of its parts."""
    made = [figure for make in (accuracy, step_size, participation) if (figure := make(comparison)) is not None]
    panels = [panel for figure in made for panel in figure.panels]
    return [Figure("overview", "Overview", "", panels, made[0].table), *made]
