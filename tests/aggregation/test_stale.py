"""Aggregations that remember: against the formulas taken literally, over all draws and over long histories."""

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import refusals, refused, view_of
from draws import EVERY, outcomes
from mmfl.aggregation import MIFA, Average, FedStale, FedVARP, Forecast, SelfNormalised, StaleVR, StaleVRE, Unbiased
from mmfl.allocation import Allocation, Full
from mmfl.runs import checkpoint
from mmfl.updates import Trained, Updates
from mmfl.updates.encoding import ENCODINGS
from mmfl.updates.store import StorageOptions

SIZES, CAPACITY = np.array([[10, 5], [30, 0], [0, 15], [7, 12]]), np.array([2, 1, 1, 2])
# The first client is expected to train the first task more than once.
P = np.array([[0.6, 0.3], [0.25, 0.0], [0.0, 0.7], [0.15, 0.4]])
NOW, LENGTH = 9, 3

RULES = {
    "unbiased": Unbiased,
    "fedvarp": FedVARP,
    "fedstale": lambda keep=None: FedStale(0.3, keep),
    "stalevr": StaleVR,
    "stalevre": StaleVRE,
    "mifa": MIFA,
    "forecast": Forecast,
    "forecast without bias": lambda keep=None: Forecast(0.0, keep),
    "forecast as mifa": lambda keep=None: Forecast(1.0, keep),
}
BIASED = ("mifa", "forecast", "forecast as mifa")
unbiased_rules = pytest.mark.parametrize("name", [name for name in RULES if name not in BIASED])
stale_rules = pytest.mark.parametrize("name", [name for name in RULES if name != "unbiased"])
both_tasks = pytest.mark.parametrize("task", [0, 1])


class Literal:
    """A rule as the formulas state it: a pass over all clients every round, in double precision.

    `h` are the last updates, `last` and `slope` the round of the last activity and StaleVRE's slope.
    """

    def __init__(self, name, clients, length, precision="float32"):
        self.name, self.precision = name, precision
        self.h = np.zeros((clients, length))
        self.last, self.slope = np.zeros(clients), np.zeros(clients)

    def best(self, i, sent):
        return sent[i] @ self.h[i] / (self.h[i] @ self.h[i]) if self.h[i].any() else 0.0

    def beta(self, i, sent, t):
        if self.name == "stalevr":
            return self.best(i, sent)
        if self.name == "stalevre":
            fallen = 1 - self.slope[i] * (t - self.last[i] - 1)
            return np.clip(fallen, 0, 1) if self.last[i] else 0.0
        return {"unbiased": 0.0, "fedstale": 0.3, "mifa": np.nan}.get(self.name, 1.0)

    def step(self, t, n, scale, sent):
        """The step of round t: n [clients] examples, H [clients] the sums of d / (B p) over the drawn processors."""
        clients, drawn = range(len(n)), np.flatnonzero(scale)
        d = n / max(n.sum(), 1)
        beta = [self.beta(i, sent, t) for i in clients]
        step = sum(d[i] * beta[i] * self.h[i] for i in clients if n[i])
        bias = {"forecast": 0.3, "forecast as mifa": 1.0}.get(self.name, 0.0)
        weight = (1 - bias) * scale + bias * d
        step = step + sum(weight[i] * (sent[i] - beta[i] * self.h[i]) for i in drawn)
        for i in drawn:
            best = np.clip(self.best(i, sent), 0, 1)
            self.slope[i] = (1 - best) / (t - self.last[i]) if self.last[i] else 0.0
            self.last[i] = t
            encoding, row = ENCODINGS[self.precision], torch.from_numpy(sent[i : i + 1]).float()
            self.h[i] = encoding.decode(encoding.encode(row), row.shape[1])
        return sum(d[i] * self.h[i] for i in clients) if self.name == "mifa" else step


def updates_of(rule, task, count, sent, view, probabilities) -> Updates:
    """What a rule is handed: the drawn clients' updates, or everybody's where it needs them."""
    client = np.flatnonzero(view.able[:, task] if rule.needs_everyone else count[:, task])
    flat = torch.from_numpy(sent[client]).float()
    trained = Trained(client, flat, np.zeros(len(client)), np.ones(len(client), dtype=int))
    return Updates.of(task, trained, Allocation.of(count, probabilities))


def step_of(rule, state, task, count, sent, view, probabilities=P):
    """The step that a rule takes from zero, in double precision, and its state after it."""
    after, state = rule.aggregate(
        torch.zeros(sent.shape[1]), updates_of(rule, task, count, sent, view, probabilities), view, state
    )
    return -after.double().numpy(), state


def weights_of(task, count, view, probabilities=P):
    """H: sum of d / (B p) over the drawn processors, [clients]."""
    expected = np.where(count[:, task] > 0, view.capacity * probabilities[:, task], 1)
    return count[:, task] * view.share[:, task] / expected


@cache
def remembered(name, task):
    """A rule, its state and the literal one after some rounds; client 3 has not been drawn yet for the first task."""
    rng, rule = np.random.default_rng(5), RULES[name]()
    state, literal = rule.start(4, torch.zeros(LENGTH)), Literal(name, 4, LENGTH)
    usual = rng.normal(size=(4, LENGTH))
    for t, drawn in ((1, [0, 2]), (2, [1, 3]), (4, [0, 1, 2]), (7, [1, 2, 3]), (8, [0])):
        view = view_of(SIZES, CAPACITY, round=t)
        count = np.zeros(SIZES.shape, dtype=int)
        count[drawn, task] = view.able[drawn, task]
        count[3, 0] = 0
        sent = (usual + 0.7 * rng.normal(size=usual.shape)).astype(np.float32).astype(float)
        _, state = step_of(rule, state, task, count, sent, view)
        literal.step(t, SIZES[:, task], weights_of(task, count, view), sent)
    return rule, state, literal


VIEW = view_of(SIZES, CAPACITY, round=NOW)
SENT = np.random.default_rng(6).normal(size=(4, LENGTH)).astype(np.float32).astype(float)


NOBODY = np.zeros(P.shape, dtype=int)


def this_round(name, task, count=NOBODY, sent=SENT, probabilities=P):
    """The step of a rule with a memory, and its state after it."""
    rule, state, _ = remembered(name, task)
    return step_of(rule, copy.deepcopy(state), task, count, sent, VIEW, probabilities)


@cache
def draws(kind):
    """Every outcome of a draw with its chance, as a list of (chance, count)."""
    found = outcomes(kind, P, CAPACITY)
    return [(float(chance), np.frombuffer(key, np.int64).reshape(P.shape)) for key, chance in found.items()]


def moments(kind, step):
    """Mean and variance (summed over components) of a step over every draw."""
    steps = [(chance, step(count)) for chance, count in draws(kind)]
    mean = sum(chance * value for chance, value in steps)
    return mean, sum(chance * ((value - mean) ** 2).sum() for chance, value in steps)


@both_tasks
@unbiased_rules
@pytest.mark.parametrize("kind", EVERY)
def test_sampled_step_equals_full_step_on_average_over_all_draws(name, kind, task):
    mean, variance = moments(kind, lambda count: this_round(name, task, count)[0])
    np.testing.assert_allclose(mean, VIEW.share[:, task] @ SENT, atol=1e-5)
    assert variance > 1e-3
    assert this_round(name, task, NOBODY)[0].any() == (name != "unbiased")


@both_tasks
@unbiased_rules
def test_the_step_varies_as_the_formula_says(name, task):
    _, variance = moments("independent", lambda count: this_round(name, task, count)[0])
    left = SENT - betas(name, task)[:, None] * remembered(name, task)[2].h
    assert variance == pytest.approx(formula(left, task), rel=1e-4)


@both_tasks
def test_the_sag_share_misses_its_part_of_the_corrections_that_did_not_come_and_varies_less(task):
    """Of clients that are drawn at most once: mean sum d G - bias sum d (1 - q) (G - h), with q = B p."""
    q = np.where(SIZES > 0, np.array([0.6, 0.3, 0.5, 0.2])[:, None], 0.0) / 2
    view, (rule, state, literal) = view_of(SIZES, 1, round=NOW), remembered("forecast", task)
    d, left, draws_of_one = view.share[:, task], SENT - literal.h, outcomes("independent", q, np.ones(4, dtype=int))
    steps = [
        (float(chance), step_of(rule, copy.deepcopy(state), task, count, SENT, view, q)[0])
        for key, chance in draws_of_one.items()
        for count in [np.frombuffer(key, np.int64).reshape(q.shape)]
    ]
    mean = sum(chance * step for chance, step in steps)
    bias = 0.3 * (d * (1 - q[:, task])) @ left
    np.testing.assert_allclose(mean, d @ SENT - bias, atol=1e-5)
    assert np.abs(bias).max() > 0.01
    variance = sum(chance * ((step - mean) ** 2).sum() for chance, step in steps)
    able, p = np.flatnonzero(d), q[:, task]
    each = d**2 * (left**2).sum(1) * (1 - 0.3 * (1 - p)) ** 2
    assert variance == pytest.approx((each[able] * (1 / p[able] - 1)).sum(), rel=1e-4)


@both_tasks
@pytest.mark.parametrize("name", ["fedvarp", "mifa", "forecast", "forecast as mifa"])
def test_once_every_client_has_sent_the_update_that_it_still_sends_every_draw_takes_the_full_step(name, task):
    """Before that, after a part of the clients: the bias of the SAG share is what is missing of the others."""
    rule, state = RULES[name](), remembered(name, task)[1]
    state, full = copy.deepcopy(state), VIEW.share[:, task] @ SENT
    for client in np.flatnonzero(SIZES[:, task]):
        spread = [
            np.abs(step_of(rule, copy.deepcopy(state), task, c, SENT, VIEW)[0] - full) for _, c in draws("independent")
        ]
        assert np.max(spread) > 1e-3
        count = np.zeros(P.shape, dtype=int)
        count[client, task] = 1
        _, state = step_of(rule, state, task, count, SENT, VIEW)
    for _, count in draws("independent"):
        step, _ = step_of(rule, copy.deepcopy(state), task, count, SENT, VIEW)
        np.testing.assert_allclose(step, full, atol=1e-5)


def betas(name, task):
    """The betas of this round, literally, [clients]."""
    _, _, literal = remembered(name, task)
    return np.array([literal.beta(i, SENT, NOW) for i in range(4)])


def formula(vectors, task):
    """sum over processors of (d / B)^2 ||vector||^2 (1 / p - 1)."""
    able = np.flatnonzero(SIZES[:, task])
    d, B, p = VIEW.share[able, task], CAPACITY[able], P[able, task]
    return (B * (d / B) ** 2 * (vectors[able] ** 2).sum(1) * (1 / p - 1)).sum()


@both_tasks
@given(st.lists(st.floats(-2, 2), min_size=4, max_size=4))
@settings(max_examples=20)
def test_no_other_betas_leave_less_variance_than_those_of_stalevr(task, change):
    best, h = np.nan_to_num(this_round("stalevr", task)[1].beta)[:, None], remembered("stalevr", task)[2].h
    least = formula(SENT - best * h, task)
    change = np.array(change)[:, None]
    # Away from the minimum of a parabola: the excess is its curvature's, without a linear term.
    excess = formula(SENT - (best + change) * h, task) - least
    assert excess == pytest.approx(formula(change * h, task), rel=1e-4, abs=1e-5)
    for other in ("unbiased", "fedstale", "fedvarp", "stalevre"):
        assert least < formula(SENT - betas(other, task)[:, None] * h, task)


@both_tasks
def test_the_best_beta_for_active_clients_only_would_bias_stalevre(task):
    """What the same estimate for everyone avoids: sum d (1 - p) (beta - best) h, with (1 - p)^B for B processors."""
    _, _, literal = remembered("stalevre", task)
    d, able = VIEW.share[:, task], np.flatnonzero(SIZES[:, task])
    estimate, best = betas("stalevre", task), np.array([literal.best(i, SENT) for i in range(4)])

    def mixed(count):
        scale = weights_of(task, count, VIEW)
        beta = np.where(count[:, task] > 0, best, estimate)
        return (d * beta) @ literal.h + scale @ (SENT - beta[:, None] * literal.h)

    mean, _ = moments("independent", mixed)
    idle = (1 - P[:, task]) ** CAPACITY
    bias = sum(d[i] * idle[i] * (estimate[i] - best[i]) * literal.h[i] for i in able)
    np.testing.assert_allclose(mean - d @ SENT, bias, atol=1e-12)
    assert np.abs(bias).max() > 0.01  # a thousand times what the test of unbiasedness allows


CLIENTS, ROUNDS = 24, 70


def history(seed, rounds=ROUNDS):
    """Rounds of a federation where all may happen: (view, probabilities, count, G) of each; task 1 is the one that
    matters."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 40, (CLIENTS, 2)) * (rng.random((CLIENTS, 2)) < 0.9)
    arrival, departure = rng.choice([1, 1, 20, 45], CLIENTS), rng.choice([15, 50, 999, 999], CLIENTS)
    there, last = np.ones(CLIENTS, dtype=bool), rng.normal(size=(CLIENTS, LENGTH))
    for t in range(1, rounds + 1):
        there ^= rng.random(CLIENTS) < np.where(there, 0.08, 0.3)
        here = there & (arrival <= t) & (t < departure)
        now = np.where(here[:, None], sizes, 0) * [1, t % 17 > 1]
        capacity = np.minimum(rng.integers(1, 3, CLIENTS), (now > 0).sum(1))
        p = np.where(now > 0, rng.uniform(0.1, 0.5, (CLIENTS, 2)), 0.0)
        drawn = (now > 0) & (rng.random((CLIENTS, 2)) < 0.2) & (t % 11 > 1)
        count = drawn * np.minimum(rng.integers(1, 3, (CLIENTS, 2)), capacity[:, None])
        fresh = rng.normal(size=(CLIENTS, LENGTH)) * 10 ** rng.uniform(-2, 1, (CLIENTS, 1))
        kind = rng.integers(0, 5, (CLIENTS, 1))  # as before, the opposite, partly so, nothing at all, something new
        sent = np.choose(kind, [1.01 * last, -last, 0.6 * last + 0.1 * fresh, 0 * last, fresh])
        sent = sent.astype(np.float32).astype(float)
        last = np.where((count[:, 1] > 0)[:, None] & (kind != 3), sent, last)
        yield view_of(now, capacity, round=t), p, count, sent


def test_the_histories_hold_all_that_may_happen():
    literal, seen = Literal("stalevre", CLIENTS, LENGTH), set()
    before = np.zeros(CLIENTS, dtype=bool)
    ever = np.zeros(CLIENTS, dtype=bool)
    for view, p, count, sent in history(0):
        here, known = view.able[:, 1], literal.last > 0
        beta = np.array([literal.beta(i, sent, view.round) for i in range(CLIENTS)])
        happened = {
            "no client": not here.any(),
            "nobody drawn": here.any() and not count[:, 1].any(),
            "drawn twice": (count[:, 1] > 1).any(),
            "remembered and absent": (known & before & ~here).any() and here.any(),
            "remembered and back": (known & ~before & here & ever).any(),
            "clipped": (known & here & (beta == 0)).any(),
            "on the way": ((beta > 0) & (beta < 1) & here).any(),
        }
        seen |= {what for what, did in happened.items() if did}
        before, ever = here, ever | here
        literal.step(view.round, view.sizes[:, 1], weights_of(1, count, view, p), sent)
    assert seen == set(happened)


keeps = st.builds(
    StorageOptions, st.sampled_from(["device", "host", "file"]), st.sampled_from(["float32", "float16", "3-bit"])
)


@stale_rules
@given(st.integers(0, 10**6), keeps)
@settings(max_examples=4)
def test_running_sums_equal_the_direct_formula_over_long_histories(name, seed, keep):
    rule, literal = RULES[name](keep=keep), Literal(name, CLIENTS, LENGTH, keep.precision)
    state = rule.start(CLIENTS, torch.zeros(LENGTH))
    for view, p, count, sent in history(seed):
        step, state = step_of(rule, state, 1, count, sent, view, p)
        scale = weights_of(1, count, view, p)
        expected = literal.step(view.round, view.sizes[:, 1], scale, sent)
        np.testing.assert_allclose(step, expected, atol=1e-5 * (1 + np.abs(scale @ np.abs(sent)).max()))
        np.testing.assert_array_equal(state.stored.rows(np.arange(CLIENTS)), literal.h)


@stale_rules
@pytest.mark.parametrize(("where", "precision"), [("file", "float32"), ("file", "float16"), ("device", "3-bit")])
def test_a_checkpoint_continues_with_the_same_bits(name, where, precision, tmp_path):
    rule, weights, taken_up = RULES[name](keep=StorageOptions(where, precision)), torch.zeros(LENGTH), None
    state = rule.start(CLIENTS, weights)
    for view, p, count, sent in history(3):
        updates = updates_of(rule, 1, count, sent, view, p)
        weights, state = rule.aggregate(weights, updates, view, state)
        if taken_up is not None:
            taken_up = rule.aggregate(taken_up[0], updates, view, taken_up[1])
            assert torch.equal(weights, taken_up[0])
            assert rule.report(view, 1, state) == rule.report(view, 1, taken_up[1])
        elif view.round == 37:
            checkpoint.write(tmp_path, 37, "mark", [weights, state])
            _, taken_up = checkpoint.read(tmp_path, "mark", [weights, rule.start(CLIENTS, weights)])
    assert taken_up is not None
    assert weights.abs().sum() > 0


@given(st.integers(0, 10**6))
@settings(max_examples=5)
def test_a_hundred_rounds_in_a_row_without_anyone_change_nothing_but_the_estimates(seed):
    """An estimate falls by itself, to the end."""
    rule, literal = StaleVRE(), Literal("stalevre", CLIENTS, LENGTH)
    state = rule.start(CLIENTS, torch.zeros(LENGTH))
    for view, p, count, sent in history(seed, 40):
        _, state = step_of(rule, state, 1, count, sent, view, p)
        literal.step(view.round, view.sizes[:, 1], weights_of(1, count, view, p), sent)
    nobody, sizes = np.zeros((CLIENTS, 2), dtype=int), np.ones((CLIENTS, 2))
    for t in range(41, 141):
        step, state = step_of(rule, state, 1, nobody, sent, view_of(sizes, round=t), np.ones((CLIENTS, 2)))
        np.testing.assert_allclose(step, literal.step(t, sizes[:, 1], nobody[:, 1], sent), atol=1e-5)
    idle = literal.slope > 0.01
    assert not state.beta(140)[idle].any()
    assert not state.weight[idle].any()


@pytest.mark.parametrize("idle", [1, 2, 5])
def test_stalevres_line_passes_above_the_best_beta_by_its_fall_over_the_rounds_since(idle):
    """Our reading of eq. 21: the slope is (1 - best) / (t - t1), so the line is not through `best` in round t, and it
    is defined after consecutive activity (idle = 1), where the printed one is 0 / 0."""
    rule, best = StaleVRE(), 0.4
    state, one = rule.start(1, torch.zeros(2)), np.ones(1, dtype=int)
    for t, update in ((3, [1.0, 0.0]), (3 + idle, [best, 0.7])):
        updates = Updates(0, np.zeros(1, dtype=int), one, one / 1, torch.tensor([update]), one / 1, one)
        _, state = rule.aggregate(torch.zeros(2), updates, view_of([[5]], round=t), state)
    then = 3 + idle
    np.testing.assert_allclose(state.beta(then + 2), 1 - (1 - best) / idle, rtol=1e-6, atol=1e-9)
    line_in_the_active_round = 1 - state.slope * (idle - 1)
    np.testing.assert_allclose(line_in_the_active_round, best + (1 - best) / idle, rtol=1e-6)


@pytest.mark.parametrize("name", ["fedvarp", "fedstale", "mifa", "stalevre", "forecast"])
def test_a_round_touches_active_clients_and_few_others_however_many_are_remembered(name, touched):
    clients, active, rng = 100_000, 50, np.random.default_rng(0)
    rule, view = RULES[name](), view_of(rng.integers(1, 20, (clients, 1)))
    state, seen, per_round = rule.start(clients, torch.zeros(2)), np.zeros(0, dtype=int), []
    for t in range(1, 41):
        new = np.arange((t - 1) * active, t * active)[: active if t % 2 else active // 2]
        client = np.union1d(new, rng.permutation(seen)[: active - len(new)])
        seen = np.union1d(seen, client)
        flat = torch.from_numpy(rng.normal(size=(len(client), 2))).float()
        ones = np.ones(len(client), dtype=int)
        updates = Updates(0, client, ones, np.full(len(client), 5e-4), flat, np.zeros(len(client)), ones)
        touched.clear()
        _, state = rule.aggregate(torch.zeros(2), updates, replace(view, round=t), state)
        per_round.append(sum(touched))
    assert len(seen) > 25 * active
    assert active < max(per_round) <= 4 * active
    assert max(per_round[-10:]) <= 1.2 * max(per_round[:10])
    assert len(state.stored) == len(seen)
    assert state.stored.nbytes <= 2 * len(seen) * 2 * 4


def test_clients_that_reach_zero_are_touched_once_and_then_rest(touched):
    """A thousand clients whose estimates all end in the same round, then none."""
    rule, clients = StaleVRE(), 1000
    everyone, ones = np.arange(clients), np.ones(clients, dtype=int)
    sizes = np.ones((clients, 1))
    state = rule.start(clients, torch.zeros(1))
    for t, sign in ((1, 1.0), (4, 0.0)):
        updates = Updates(0, everyone, ones, ones / 2, torch.full((clients, 1), sign), ones / 1, ones)
        _, state = rule.aggregate(torch.zeros(1), updates, view_of(sizes, round=t), state)
    none = np.zeros(0, dtype=int)
    nobody = Updates(0, none, none, none / 1, torch.zeros(0, 1), none / 1, none)
    counts = []
    for t in range(5, 12):
        touched.clear()
        _, state = rule.aggregate(torch.zeros(1), nobody, view_of(sizes, round=t), state)
        counts.append(sum(touched))
    # Slope (1 - 0) / 3: the estimates are 1, 2/3, 1/3 in rounds 5 to 7 and 0 in round 8.
    assert counts == [0, 0, 0, clients, 0, 0, 0]


@both_tasks
@pytest.mark.parametrize("name", [*RULES, "self-normalised", "average"])
def test_with_full_participation_every_rule_takes_the_full_step(name, task):
    allocation, _ = Full().allocate(VIEW, None)
    count = np.zeros(P.shape, dtype=int)
    count[allocation.client, allocation.task] = allocation.count
    plain = {"self-normalised": SelfNormalised(), "average": Average()}
    rule, state = (plain[name], None) if name in plain else remembered(name, task)[:2]
    step, _ = step_of(rule, copy.deepcopy(state), task, count, SENT, VIEW, allocation.probabilities)
    np.testing.assert_allclose(step, VIEW.share[:, task] @ SENT, atol=1e-6)


def test_stalevr_does_not_vary_where_every_update_is_a_multiple_of_the_last():
    h = remembered("stalevr", 1)[2].h
    assert h[SIZES[:, 1] > 0].any(1).all()
    multiples = np.array([[-1.5], [0.0], [0.25], [3.0]]) * h
    steps = [this_round("stalevr", 1, count, multiples)[0] for _, count in draws("independent")]
    np.testing.assert_allclose(steps, np.tile(VIEW.share[:, 1] @ multiples, (len(steps), 1)), atol=1e-5)


@both_tasks
@pytest.mark.parametrize("name", ["fedvarp", "fedstale", "stalevr", "stalevre", "forecast"])
def test_residuals_are_what_the_last_updates_do_not_explain(name, task):
    rule, state, literal = remembered(name, task)
    everyone = updates_of(StaleVR(), task, NOBODY, SENT, VIEW, P)
    left = (SENT - betas(name, task)[:, None] * literal.h)[everyone.client]
    np.testing.assert_allclose(rule.residuals(everyone, VIEW, state), np.linalg.norm(left, axis=1), rtol=1e-5)
    assert not np.allclose(left, everyone.flat)


def test_stalevr_takes_its_stale_step_in_a_round_in_which_a_task_cannot_be_drawn():
    """As under an allocation that gives all the budget to one task: everyone trains, with probability 0 to be drawn."""
    step, _ = this_round("stalevr", 0, probabilities=np.zeros(P.shape))
    expected = (VIEW.share[:, 0] * betas("stalevr", 0)) @ remembered("stalevr", 0)[2].h
    np.testing.assert_allclose(step, expected, atol=1e-6)


@both_tasks
@pytest.mark.parametrize(("name", "round"), [("stalevr", NOW), ("stalevre", NOW + 1)])
def test_reports_are_of_the_betas_just_used_or_of_the_estimates_of_the_next_round(name, round, task):
    rule, _, literal = remembered(name, task)
    known = np.flatnonzero((literal.last > 0) & (SIZES[:, task] > 0))
    beta = np.array([literal.beta(i, SENT, round) for i in known])
    report = rule.report(VIEW, task, this_round(name, task)[1])
    assert report == pytest.approx({"beta_mean": beta.mean(), "beta_min": beta.min(), "beta_max": beta.max()}, rel=1e-5)
    assert rule.report(VIEW, task, rule.start(4, torch.zeros(LENGTH))) == {}


@refusals(
    (lambda: FedStale(-0.1), "beta is -0.1", "in [0, 1]"),
    (lambda: Forecast(-0.1), "bias is -0.1", "in [0, 1]"),
    (lambda: Forecast(float("nan")), "bias is nan", "in [0, 1]"),
    (lambda: Forecast("high"), "bias is 'high'", "in [0, 1]"),
    (lambda: Forecast(True), "bias is True", "in [0, 1]"),
    (lambda: FedStale(1.1), "beta is 1.1", "in [0, 1]"),
    (lambda: FedStale(float("nan")), "beta is nan"),
    *[
        (lambda rule=rule: rule(keep={"wher": "host"}), "unknown option 'wher'", "did you mean 'where'?")
        for rule in (FedStale, FedVARP, MIFA, Forecast, StaleVR, StaleVRE)
    ],
    (lambda: MIFA(keep={"where": "cloud"}), "unknown where 'cloud'"),
    (lambda: StaleVRE(keep="host"), "keep is 'host'", "expected a table"),
)
def test_a_bad_option_is_refused(make, words):
    with refused(*words):
        make()
