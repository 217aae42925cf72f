"""Group sampling compared with random allocation and round-robin (Gong et al., Figures 2 to 4)."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pandas as pd

from mmfl.papers.evidence import alike, greater
from mmfl.papers.group import clusters
from mmfl.papers.group.accuracy import Measured, ahead, draw, equal_costs, notes_on, table
from mmfl.papers.group.runs import FIVE_CLUSTERS, parts
from mmfl.papers.reproduction import NOTES, Claim, Findings, Frames, Reproduction, reproduction
from mmfl.report.differences import difference


def find(
    setting: str, beside: str, claims: Callable[[Measured, Measured], Iterator[Claim]], frames: Frames
) -> Findings:
    """The findings in a setting, with another beside it."""
    both = Measured(setting, frames), Measured(beside, frames)
    return Findings(table(both), list(claims(*both)), notes_on(both))


def find_consistent(frames: Frames) -> Findings:
    """Figure 2a: group sampling leads by more than ten points."""

    def claims(results: Measured, _: Measured) -> Iterator[Claim]:
        paper = "ahead by more than 10 points"
        yield from ahead(results, results.tasks, paper)
        yield from ahead(results, ["mean"], paper, 0.1)
        yield from equal_costs(results)

    found, crowd = find("consistent", "everyone", claims, frames), Measured("everyone", frames)
    notes = [
        "Not in the paper: setting *everyone*, in which all clients train in every round. There the mean accuracy "
        f"of {crowd.group} minus that of {best} is "
        f"{difference(crowd.scores[crowd.group]['mean'], crowd.scores[best]['mean'])}. A random group then holds "
        "all kinds of clients, so that its mean update is near that of all, while a cluster still holds one kind. "
        "With one client a task and round, every method trains on one kind at a time, and clusters only see to it "
        "that no kind is left out for long."
        for best in crowd.rivals("mean")[:1]
    ]
    return replace(found, notes=[*found.notes, *notes])


def find_inconsistent(frames: Frames) -> Findings:
    """Figure 2b: group sampling leads by at least four points; everything is harder than with consistent clusters."""
    found = find("inconsistent", "consistent", inconsistent_claims, frames)
    return replace(found, notes=[*found.notes, NOTES["inconsistent"]])


def inconsistent_claims(results: Measured, easier: Measured) -> Iterator[Claim]:
    """The leads, the lead of the one-task C-step if it forms no more clusters than there are tasks, and the drop."""
    yield from ahead(results, results.tasks, "at least 4 points", 0.04)
    yield from ahead(results, ["mean"], "ahead")
    for rival in results.rivals("mean") if FIVE_CLUSTERS in results.scores else []:
        text = f"inconsistent: held to five clusters, {results.group} is ahead of {rival}, on average over the tasks"
        yield greater(text, "not tried", results.scores[FIVE_CLUSTERS]["mean"], results.scores[rival]["mean"])
    yield from equal_costs(results)
    for task, here, there in both_groups(results, easier):
        text = f"{results.group} is less accurate than {easier.group} with consistent clusters on {task}"
        yield greater(text, "a noticeable drop on all tasks", there, here)


def both_groups(results: Measured, other: Measured) -> Iterator[tuple[str, pd.Series, pd.Series]]:
    """Each task with the accuracies of group sampling in two settings; nothing unless it was run in both."""
    if results.group in results.scores and other.group in other.scores:
        for task in results.tasks:
            yield task, results.scores[results.group][task], other.scores[other.group][task]


def clients_claims(results: Measured, fewer: Measured) -> Iterator[Claim]:
    """Figure 4a: group sampling leads, and only it gains from more clients."""
    yield from ahead(results, results.tasks, "ahead")
    yield from equal_costs(results)
    for method in [method for method in results.scores if method in fewer.scores]:
        now, before = results.scores[method]["mean"], fewer.scores[method]["mean"]
        if method == results.group:
            yield greater(f"{method} gains by clients that arrive", "improves", now, before)
        else:
            text = f"{method} gains at most a point by clients that arrive"
            claim = greater(text, "similar or worse", before, now, margin=-0.01)
            yield replace(claim, ours=str(difference(now, before)))


def tasks_claims(results: Measured, usual: Measured) -> Iterator[Claim]:
    """Figure 4b: group sampling leads on late tasks too."""
    yield from ahead(results, results.tasks, "ahead")
    yield from equal_costs(results)
    arrival = results.frame("tasks").set_index("task")["arrival"]
    for task, now, before in both_groups(results, usual):
        if arrival[task] > 1:
            text = f"{results.group}: {task}, which came in round {arrival[task]}, ends lower than from the start"
            yield greater(text, "degrades by the late start", before, now)
        else:
            text = f"{results.group}: {task} ends about where it does without late tasks"
            yield alike(text, "similar", now, before, 0.03)


def _compared(id: str, setting: str, claims: Callable[[Measured, Measured], Iterator[Claim]]) -> Reproduction:
    """A setting beside that of consistent clusters."""
    found = partial(find, setting, "consistent", claims)
    return reproduction(id, parts(setting, "consistent"), found, partial(draw, setting))


REPRODUCTIONS = (
    reproduction("group-fig2a", parts("consistent", "everyone"), find_consistent, partial(draw, "consistent")),
    reproduction("group-fig2b", parts("inconsistent", "consistent"), find_inconsistent, partial(draw, "inconsistent")),
    reproduction("group-fig3", parts("consistent", "inconsistent"), clusters.find, clusters.draw),
    _compared("group-fig4a", "dynamic-clients", clients_claims),
    _compared("group-fig4b", "dynamic-tasks", tasks_claims),
)
