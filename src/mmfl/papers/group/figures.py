"""Group sampling compared with random allocation and round-robin (Gong et al., Figures 2 to 4)."""

from dataclasses import replace
from functools import partial

from mmfl.papers.evidence import alike, greater
from mmfl.papers.group import clusters
from mmfl.papers.group.accuracy import Measured, ahead, draw, equal_costs, notes_on, table
from mmfl.papers.group.runs import FIVE_CLUSTERS, parts
from mmfl.papers.reproduction import Claim, Findings, Frames, Reproduction
from mmfl.report.differences import difference


def find_consistent(frames: Frames) -> Findings:
    """Figure 2a: group sampling leads by more than ten points."""
    settings = Measured.of(frames, "consistent", "everyone")
    claims, notes = [], notes_on(settings)
    if results := settings.get("consistent"):
        paper = "ahead by more than 10 points"
        claims = [*ahead(results, results.tasks, paper), *ahead(results, ["mean"], paper, 0.1), equal_costs(results)]
    if crowd := settings.get("everyone"):
        notes += [
            "Not in the paper: setting *everyone*, in which all clients train in every round. There the mean accuracy "
            f"of {crowd.group} minus that of {best} is "
            f"{difference(crowd.scores[crowd.group]['mean'], crowd.scores[best]['mean'])}. A random group then holds "
            "all kinds of clients, so that its mean update is near that of all, while a cluster still holds one kind. "
            "With one client a task and round, every method trains on one kind at a time, and clusters only see to it "
            "that no kind is left out for long."
            for best in crowd.rivals("mean")[:1]
        ]
    return Findings(table(settings.values()), claims, notes)


def find_inconsistent(frames: Frames) -> Findings:
    """Figure 2b: group sampling leads by at least four points; everything is harder than with consistent clusters."""
    settings = Measured.of(frames, "inconsistent", "consistent")
    claims: list[Claim] = []
    if results := settings.get("inconsistent"):
        claims += [*ahead(results, results.tasks, "at least 4 points", 0.04), *ahead(results, ["mean"], "ahead")]
        claims += [*at_equal_cost(results), equal_costs(results)]
    if results and (easier := settings.get("consistent")):
        claims += [
            greater(
                f"{results.group} is less accurate than {easier.group} with consistent clusters on {task}",
                "a noticeable drop on all tasks",
                easier.scores[easier.group][task],
                results.scores[results.group][task],
            )
            for task in results.tasks
            if results.group in results.scores and easier.group in easier.scores
        ]
    law = (
        "A drop of the baselines would be chance: whom they give a task does not depend on anybody's data, and each "
        "task by itself is divided over its clients by the same rule in both settings, so their accuracies have the "
        "same distribution in both."
    )
    return Findings(table(settings.values()), claims, [*notes_on(settings), law])


def at_equal_cost(results: Measured) -> list[Claim]:
    """The lead of the one-task C-step if it forms no more clusters than there are tasks."""
    if FIVE_CLUSTERS not in results.scores:
        return []
    ours = results.scores[FIVE_CLUSTERS]["mean"]
    return [
        greater(
            f"{results.setting}: held to five clusters, {results.group} is ahead of {rival}, on average over the tasks",
            "not tried",
            ours,
            results.scores[rival]["mean"],
        )
        for rival in results.rivals("mean")
    ]


def find_clients(frames: Frames) -> Findings:
    """Figure 4a: group sampling leads, and only it gains from more clients."""
    settings = Measured.of(frames, "dynamic-clients", "consistent")
    claims: list[Claim] = []
    if results := settings.get("dynamic-clients"):
        claims += [*ahead(results, results.tasks, "ahead"), equal_costs(results)]
    if results and (fewer := settings.get("consistent")):
        for method in [method for method in results.scores if method in fewer.scores]:
            now, before = results.scores[method]["mean"], fewer.scores[method]["mean"]
            if method == results.group:
                claims.append(greater(f"{method} gains by clients that arrive", "improves", now, before))
            else:
                text = f"{method} gains at most a point by clients that arrive"
                claim = greater(text, "similar or worse", before, now, margin=-0.01)
                claims.append(replace(claim, ours=str(difference(now, before))))
    return Findings(table(settings.values()), claims, notes_on(settings))


def find_tasks(frames: Frames) -> Findings:
    """Figure 4b: group sampling leads on late tasks too."""
    settings = Measured.of(frames, "dynamic-tasks", "consistent")
    claims: list[Claim] = []
    if results := settings.get("dynamic-tasks"):
        claims += [*ahead(results, results.tasks, "ahead"), equal_costs(results)]
    if results and (usual := settings.get("consistent")):
        arrival = results.frame("tasks").set_index("task")["arrival"]
        for task in results.tasks if results.group in results.scores and results.group in usual.scores else []:
            now, before = results.scores[results.group][task], usual.scores[results.group][task]
            if arrival[task] > 1:
                text = f"{results.group}: {task}, which came in round {arrival[task]}, ends lower than from the start"
                claims.append(greater(text, "degrades by the late start", before, now))
            else:
                text = f"{results.group}: {task} ends about where it does without late tasks"
                claims.append(alike(text, "similar", now, before, 0.03))
    return Findings(table(settings.values()), claims, notes_on(settings))


_NETWORKS = (
    "MNIST, Fashion-MNIST, CIFAR-10 and EMNIST twice, small CNNs for all (the paper has residual networks for MNIST "
    "and CIFAR-10); EMNIST is the balanced split or, where the data folder has only that, femnist47: NIST handwriting "
    "in the same 47 classes, which is not EMNIST. The quick form has logistic regression on the digits for every task. "
    "Five true clusters of clients with a fifth of the labels each, 30 to 40 examples a client and task. "
)
_RIVALS = (
    "Random allocation is multi-fedavg: a sixth of the clients, each on a random task. Round-robin is mfa-rr: a sixth "
    "of the clients, drawn for a frame of as many rounds as tasks and dealt into as many groups. A task then meets "
    "clients of the same distribution as if all were dealt into groups and a sixth of each drawn every round."
)


REPRODUCTIONS: tuple[Reproduction, ...] = (
    Reproduction(
        "group-fig2a",
        "group",
        "Figure 2a: group sampling, consistent clusters",
        f"{_NETWORKS}A client is in the same cluster for every task; 30 clients, 100 rounds. {_RIVALS}",
        parts("consistent", "everyone"),
        find_consistent,
        partial(draw, "consistent"),
    ),
    Reproduction(
        "group-fig2b",
        "group",
        "Figure 2b: group sampling, inconsistent clusters",
        f"{_NETWORKS}Every task has clusters of its own; 30 clients, 100 rounds. The C-step looks at one task a cycle "
        f"(mmfl-group-inconsistent); besides, the same held to five clusters, and mmfl-group as it is. {_RIVALS}",
        parts("inconsistent", "consistent"),
        find_inconsistent,
        partial(draw, "inconsistent"),
    ),
    Reproduction(
        "group-fig3",
        "group",
        "Figure 3: clusters in the clients' losses",
        f"{_NETWORKS}The losses of all clients after rounds 5 and 25 of Figures 2a and 2b, reduced to two principal "
        "components (first seed) and coloured by true cluster; inconsistent ones are those of the first task. Titles: "
        "silhouette of the true clusters and adjusted Rand index of the method's clusters in force, means over seeds.",
        parts("consistent", "inconsistent"),
        clusters.find,
        clusters.draw,
    ),
    Reproduction(
        "group-fig4a",
        "group",
        "Figure 4a: group sampling, clients that arrive",
        f"{_NETWORKS}Consistent clusters; 24 clients at the start and 36 who arrive one by one, 100 rounds. Gaps are "
        "exponential, of rate 0.1 in the paper, in a unit of time that it does not give; here their mean is 2 rounds, "
        f"so that nearly all clients arrive within the run. Dashed lines: arrivals of the first seed. {_RIVALS}",
        parts("dynamic-clients", "consistent"),
        find_clients,
        partial(draw, "dynamic-clients"),
    ),
    Reproduction(
        "group-fig4b",
        "group",
        "Figure 4b: group sampling, tasks that arrive",
        f"{_NETWORKS}Consistent clusters, 30 clients, 100 rounds; the two EMNIST tasks arrive in rounds 30 and 60 "
        f"(quick form: 9 and 18 of 25). {_RIVALS}",
        parts("dynamic-tasks", "consistent"),
        find_tasks,
        partial(draw, "dynamic-tasks"),
    ),
)
