"""The theorems against the mathematics behind them: recursions, enumerations, small quadratic federations."""

from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter

from conftest import every_draw, refusals, refused
from mmfl import data
from mmfl.theory import (
    Problem,
    RandomSplitBound,
    RotatingSplitBound,
    SamplingProblem,
    SamplingRound,
    gain,
    gain_threshold,
    theorem_3_applies,
)

PROBLEM = Problem(
    smoothness=2, strong_convexity=1, gradient_bound=1, heterogeneity=0.5, example_offset=1, example_factor=1,
    local_steps=2, clients=4, models=2,
)  # fmt: skip
RAND = RandomSplitBound(problem=PROBLEM, beta=2, gamma=16, start=0.5)
ROTATE = RotatingSplitBound(problem=PROBLEM, beta=2, gamma=4, start=0.5, sample_error=1)


@st.composite
def problems(draw):
    mu, models = draw(st.floats(0.1, 2)), draw(st.integers(1, 6))
    return Problem(
        smoothness=mu * draw(st.floats(1, 20)),
        strong_convexity=mu,
        gradient_bound=draw(st.floats(0.1, 10)),
        heterogeneity=draw(st.floats(0, 5)),
        example_offset=draw(st.floats(0, 5)),
        example_factor=draw(st.floats(1, 3)),
        local_steps=draw(st.integers(1, 5)),
        clients=models * draw(st.integers(1, 5)),
        models=models,
    )


@st.composite
def bounds(draw, kind=None):
    kind = kind or draw(st.sampled_from([RandomSplitBound, RotatingSplitBound]))
    problem, start = draw(problems()), draw(st.floats(0.1, 5))
    beta = draw(st.floats(1.05, 4)) / problem.strong_convexity
    gamma = kind.caution * problem.smoothness * beta - 1 + draw(st.floats(0.1, 50))
    more = {"sample_error": draw(st.floats(0, 5))} if kind is RotatingSplitBound else {}
    return kind(problem=problem, beta=beta, gamma=gamma, start=start, **more)


def varied(bound, **constants):
    return replace(bound, problem=replace(bound.problem, **constants))


# --- the bounds as functions ------------------------------------------------------------------------------------------


def test_constants_by_hand():
    assert RAND.training_noise == pytest.approx(6 * 2 * 0.5 + 4 * (1 + 1) / 4 + 8)
    assert RAND.split_noise == pytest.approx(1 / 3 * 4)
    assert RAND.nu == pytest.approx(4 * (16 + 4 / 3) / 1)
    assert (ROTATE.frame_drift, ROTATE.local_drift) == pytest.approx((2, 4))
    assert ROTATE.phi == pytest.approx(2 * 2 * 1 / 2 + 4 * (2 + 4 + 1) / 1)
    assert replace(RAND, start=10).nu == pytest.approx(17 * 100)
    assert replace(ROTATE, start=10).phi == pytest.approx(2 + 5 * 10)


def test_corollary_1_is_theorem_2_without_sample_error():
    full_gradients = RotatingSplitBound(problem=PROBLEM, beta=2, gamma=4, start=0.5)
    assert full_gradients.phi == pytest.approx(2 * 2 * 1 / 2 + 4 * (2 + 4) / 1)
    assert full_gradients == replace(ROTATE, sample_error=0.0)
    assert not full_gradients.left_out(np.arange(1, 50)).any()


@given(bounds(), st.floats(0.01, 1))
def test_rounds_invert_the_bound(bound, fraction):
    epsilon = fraction * float(bound.error(1))
    assert bound.error(bound.rounds(epsilon)) == pytest.approx(epsilon, rel=1e-6)
    assert bound.rounds(2 * float(bound.error(1))) == 1


@given(bounds())
def test_bound_starts_above_the_start_and_falls(bound):
    errors = bound.error(np.arange(1, 200))
    assert errors[0] >= bound.start * (1 - 1e-12)
    assert (np.diff(errors) < 0).all()


@given(bounds())
def test_error_halves_in_fourfold_time_under_theorem_1_and_quarters_under_theorem_2(bound):
    ratio = float(bound.error(4e9) / bound.error(1e9))
    assert ratio == pytest.approx(1 / 2 if isinstance(bound, RandomSplitBound) else 1 / 4, rel=1e-4)


@given(bounds())
def test_bound_grows_with_every_constant_of_the_problem(bound):
    p = bound.problem
    doubled = ["gradient_bound", "heterogeneity", "example_offset", "example_factor"]
    for worse in [
        *[varied(bound, **{name: 2 * getattr(p, name)}) for name in doubled],
        varied(bound, local_steps=p.local_steps + 1),
        varied(bound, models=p.clients),
        replace(bound, start=2 * bound.start),
    ]:
        assert worse.error(10) >= bound.error(10) * (1 - 1e-12)


@given(bounds())
def test_first_learning_rate_is_short_enough_and_rates_never_rise(bound):
    rates = bound.learning_rate(np.arange(1, 100))
    assert rates[0] * bound.caution * bound.problem.smoothness < 1
    assert (np.diff(rates) <= 0).all()


def test_learning_rate_of_mfa_rr_is_constant_within_a_frame():
    rates = varied(ROTATE, clients=6, models=3).learning_rate(np.arange(1, 8))
    np.testing.assert_allclose(rates, 2 / (np.array([1, 1, 1, 2, 2, 2, 3]) + 4))


# --- the recursions that the theorems solve ---------------------------------------------------------------------------


@given(bounds(RandomSplitBound))
def test_theorem_1_bounds_the_worst_case_of_its_recursion(bound):
    # E steps, each (1 - eta mu) a + eta^2 B; then the split adds eta^2 C.
    mu, square = bound.problem.strong_convexity, bound.start**2
    for t in range(1, 150):
        assert square <= float(bound.error(t)) ** 2 * (1 + 1e-9)
        rate = float(bound.learning_rate(t))
        for _ in range(bound.problem.local_steps):
            square = (1 - rate * mu) * square + rate**2 * bound.training_noise
        square += rate**2 * bound.split_noise


@given(bounds(RotatingSplitBound))
def test_theorem_2_bounds_the_worst_case_of_its_recursion(bound):
    # A frame adds eta^2 (Y + Z + V) to the contracted distance; within it each round moves by at most eta E G / M.
    p, distance, models = bound.problem, bound.start, bound.problem.models
    for frame in range(60):
        first = frame * models + 1
        rate = float(bound.learning_rate(first))
        drift = rate * p.local_steps * p.gradient_bound / models * np.arange(models)
        assert (distance + drift <= bound.error(first + np.arange(models)) * (1 + 1e-9)).all()
        distance = (1 - rate * p.strong_convexity) * distance
        distance += rate**2 * (bound.frame_drift + bound.local_drift + bound.sample_error)


def test_beta_mu_minus_one_divides_because_the_recursions_tend_to_that():
    rand = RandomSplitBound(problem=replace(PROBLEM, local_steps=1), beta=3, gamma=24, start=0)
    rotate = RotatingSplitBound(problem=replace(PROBLEM, models=1), beta=3, gamma=6, start=0)
    square = distance = 0.0
    for t in range(1, 20_000):
        rate = 3 / (t + rand.gamma)
        square = (1 - rate) * square + rate**2 * (rand.training_noise + rand.split_noise)
        rate = 3 / (t + rotate.gamma)
        distance = (1 - rate) * distance + rate**2 * rotate.local_drift
    assert square == pytest.approx(float(rand.error(t + 1)) ** 2, rel=1e-3)
    assert distance == pytest.approx(float(rotate.error(t + 1)), rel=1e-3)


@pytest.mark.parametrize("models", [2, 3, 6])
def test_split_noise_is_the_variance_of_a_mean_of_clients_drawn_without_replacement(models):
    bound = varied(RAND, clients=6, models=models)
    directions = np.random.default_rng(0).normal(size=(3, 4))
    longest = PROBLEM.local_steps * PROBLEM.gradient_bound  # of an update, in units of eta
    updates = longest * directions / np.linalg.norm(directions, axis=1, keepdims=True)
    updates = np.vstack([updates, -updates])  # mean 0
    squares = [(updates[list(part)].mean(0) ** 2).sum() for part in combinations(range(6), 6 // models)]
    assert bound.split_noise == pytest.approx(np.mean(squares))


def test_leaving_out_as_much_as_allowed_uses_up_the_sample_error_if_examples_pull_in_opposite_directions():
    examples, longest = 1000, np.sqrt(PROBLEM.example_gradient_square)
    rates = ROTATE.learning_rate([1, 10, 100])
    for rate, share in zip(rates, ROTATE.left_out([1, 10, 100]), strict=True):
        off = []
        for left in (int(examples * share), int(examples * share) + 1):
            pulls = longest * np.repeat([1, -1], [examples - left, left])
            off.append(PROBLEM.local_steps * abs(pulls[: examples - left].mean() - pulls.mean()))
        assert off[0] <= rate * ROTATE.sample_error < off[1]


# --- gain -------------------------------------------------------------------------------------------------------------


@given(bounds(), st.floats(0.01, 10))
def test_one_model_gains_nothing(bound, epsilon):
    assert gain(bound.with_models(1), epsilon) == 1


@given(bounds(RandomSplitBound), st.floats(0.01, 0.99))
def test_below_the_threshold_gain_exceeds_one_and_grows_with_models(bound, fraction):
    epsilon, clients = fraction * gain_threshold(bound), bound.problem.clients
    gains = [gain(bound.with_models(models), epsilon) for models in range(1, clients + 1) if clients % models == 0]
    assert epsilon > 0
    assert gains[0] == 1
    assert (np.diff(gains) > 0).all()


def test_printed_conditions_of_theorem_3():
    assert theorem_3_applies(RAND, 0.4)
    assert not theorem_3_applies(RAND, 0.5)
    assert not theorem_3_applies(varied(RAND, models=4), 0.4)
    one_step = varied(RAND, local_steps=1)  # 1 + 6 L Gamma / G^2 = 7
    assert not theorem_3_applies(varied(one_step, clients=6), 0.4)
    assert theorem_3_applies(varied(one_step, clients=8), 0.4)


def test_printed_conditions_of_theorem_3_do_not_suffice_for_an_epsilon_close_to_the_start():
    problem = Problem(
        smoothness=10, strong_convexity=1, gradient_bound=1, heterogeneity=0, local_steps=2, clients=10, models=5
    )
    bound = RandomSplitBound(problem=problem, beta=2, gamma=100, start=0.59)
    assert theorem_3_applies(bound, 0.589)
    assert bound.start <= problem.gradient_bound / problem.strong_convexity  # as Assumptions 2 and 3 imply
    assert gain_threshold(bound) < 0.589
    assert gain(bound, 0.589) < 1 < gain(bound, 0.99 * gain_threshold(bound))
    at_threshold = [gain(bound.with_models(models), gain_threshold(bound)) for models in (2, 5, 10)]
    np.testing.assert_allclose(at_threshold, at_threshold[0])  # neither grows nor falls, once noise rules


def test_mfa_rr_gains_over_fedavg_as_epsilon_falls_but_not_over_itself():
    fedavg = RAND.with_models(1)
    gains = [gain(ROTATE, epsilon, single=fedavg) for epsilon in (0.1, 0.01, 0.001)]
    assert gains == sorted(gains)
    assert gains[-1] > 100
    assert gain(ROTATE, 0.01) < 1
    with refused("gain", "models of FedAvg's bound is 2", "expected 1"):
        gain(ROTATE, 0.01, single=RAND)


# --- a federation whose constants are known ---------------------------------------------------------------------------


@dataclass
class Quadratic:
    """F_k = w'A_k w / 2 - b_k'w on overlapping stretches of a chain, and the constants of the theorems for it."""

    A: np.ndarray
    b: np.ndarray

    @property
    def optimum(self):
        return np.linalg.solve(self.A.mean(0), self.b.mean(0))

    @property
    def optima(self):
        return np.linalg.solve(self.A, self.b[..., None])[..., 0]

    def losses(self, w):
        return np.einsum("...i,kij,...j->...k", w, self.A, w) / 2 - w @ self.b.T

    def gradients(self, w, clients):
        """Of each of `clients` at its own weights, [..., clients, size]."""
        return np.einsum("...kij,...kj->...ki", self.A[clients], w) - self.b[clients]

    def constants(self):
        """L, mu, and the G and radius of a ball around the optimum that no local step below 1 / L leaves."""
        eigenvalues = np.linalg.eigvalsh(self.A)
        L, mu = eigenvalues.max(), eigenvalues.min()
        everyone = np.arange(len(self.b))
        here = np.linalg.norm(self.gradients(np.tile(self.optimum, (len(self.b), 1)), everyone), axis=1).max()
        radius = max(np.linalg.norm(self.optimum), here / mu)
        return float(L), float(mu), float(here + L * radius), float(radius)

    def problem(self, local_steps, models):
        L, mu, G, _ = self.constants()
        spread = float((self.losses(self.optimum) - np.diag(self.losses(self.optima))).mean())
        return Problem(
            smoothness=L, strong_convexity=mu, gradient_bound=G, heterogeneity=spread,
            local_steps=local_steps, clients=len(self.b), models=models,
        )  # fmt: skip

    def train(self, w, clients, rate, steps):
        """The weights that clients [..., drawn] return, [..., drawn, size]."""
        local = np.repeat(w[..., None, :], np.shape(clients)[-1], axis=-2)
        for _ in range(steps):
            local = local - rate * self.gradients(local, clients)
        return local

    def distance(self, w):
        return np.linalg.norm(w - self.optimum, axis=-1)


ROWS = data.quadratic(clients=6, block=1).x.double().numpy()
CHAIN = Quadratic(ROWS[:, :, :-1] + np.eye(7), ROWS[:, :, -1])


def started(kind, local_steps, models):
    problem = CHAIN.problem(local_steps, models)
    beta = 2 / problem.strong_convexity
    gamma = kind.caution * problem.smoothness * beta
    return kind(problem=problem, beta=beta, gamma=gamma, start=float(np.linalg.norm(CHAIN.optimum)))


def splits(rng, runs, models):
    """Client numbers [runs, models, clients / models]."""
    return rng.permuted(np.tile(np.arange(6), (runs, 1)), axis=1).reshape(runs, models, -1)


@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("models", [1, 2, 3, 6])
def test_a_round_of_mfa_rand_obeys_the_recursion_of_theorem_1_on_average_over_all_splits(local_steps, models):
    bound, rng = started(RandomSplitBound, local_steps, models), np.random.default_rng(1)
    mu, radius = bound.problem.strong_convexity, CHAIN.constants()[3]
    parts = np.array(list(combinations(range(6), 6 // models)))
    for t in (1, 10, 1000):
        rate = float(bound.learning_rate(t))
        kept = (1 - rate * mu) ** local_steps
        for w in CHAIN.optimum + radius * rng.normal(size=(10, 7)) / 10:
            after = CHAIN.train(np.tile(w, (len(parts), 1)), parts, rate, local_steps).mean(1)
            noise = rate / mu * (1 - kept) * bound.training_noise + rate**2 * bound.split_noise
            assert (CHAIN.distance(after) ** 2).mean() <= kept * CHAIN.distance(w) ** 2 + noise


@pytest.mark.parametrize("local_steps", [1, 3])
@pytest.mark.parametrize("models", [1, 2, 6])
def test_a_frame_of_mfa_rr_obeys_the_recursion_of_theorem_2(local_steps, models):
    bound, rng = started(RotatingSplitBound, local_steps, models), np.random.default_rng(2)
    w = np.zeros((20, 7))
    for frame in range(1, 30):
        rate = float(bound.learning_rate(frame * models))
        before, parts = CHAIN.distance(w), splits(rng, 20, models)
        for part in range(models):
            returned = CHAIN.train(w, parts[:, part], rate, local_steps)
            w = w + (returned - w[:, None]).sum(1) / 6  # an update counts 1 / N
        noise = rate**2 * (bound.frame_drift + bound.local_drift)
        assert (CHAIN.distance(w) <= (1 - rate * bound.problem.strong_convexity) * before + noise).all()


@pytest.mark.parametrize("kind", [RandomSplitBound, RotatingSplitBound])
@pytest.mark.parametrize("models", [2, 6])
def test_measured_error_stays_below_the_bound(kind, models):
    bound, rng, runs = started(kind, 2, models), np.random.default_rng(3), 40
    w, measured = np.zeros((runs, 7)), []
    for t in range(1, 121):
        measured.append(CHAIN.distance(w).mean())
        turn = (t - 1) % models
        if kind is RandomSplitBound or turn == 0:
            parts = splits(rng, runs, models)
        rate = float(bound.learning_rate(t)) / (1 if kind is RandomSplitBound else models)
        w = CHAIN.train(w, parts[:, turn], rate, 2).mean(1)
    assert (measured <= bound.error(np.arange(1, 121))).all()
    assert measured[-1] < measured[0] / 2


def test_a_server_that_averages_needs_the_rate_divided_by_the_models_for_theorem_2():
    # Clients at +1 and -1, one a round: G = 2 as the weights stay within [-1, 1].
    models, runs, rng = 256, 20, np.random.default_rng(4)
    problem = Problem(
        smoothness=1, strong_convexity=1, gradient_bound=2, heterogeneity=0.5, local_steps=1, clients=models,
        models=models,
    )  # fmt: skip
    bound = RotatingSplitBound(problem=problem, beta=2, gamma=1.01, start=0)
    worst = {}
    for divisor in (1, models):
        w, ratios = np.zeros(runs), []
        for frame in range(300):
            first = frame * models + 1
            rate = float(bound.learning_rate(first)) / divisor
            pulls = rng.permuted(np.tile([1.0, -1.0], (runs, models // 2)), axis=1)
            path, _ = lfilter([rate], [1, rate - 1], pulls, zi=(1 - rate) * w[:, None])
            ratios.append(np.abs(path[:, :-1]).mean(0) / bound.error(first + np.arange(1, models)))
            w = path[:, -1]
        worst[divisor] = np.max(ratios)
    assert worst[models] < 1 < worst[1]


# --- sampling with any probabilities ----------------------------------------------------------------------------------

SAMPLING = SamplingProblem(
    smoothness=2, strong_convexity=1, gradient_bound=3, local_steps=2, probability_floor=0.2, optimum_gap=0.5,
    gradient_gap=0.4,
)  # fmt: skip
SHARE, CAPACITY, CHANCE = np.array([0.5, 0.3, 0.2]), np.array([2, 1, 1]), np.array([0.4, 0.9, 0.2])
ROUND = SamplingRound(SAMPLING, SHARE, CAPACITY, CHANCE)
WEIGHT = SHARE / (CAPACITY * CHANCE)  # P, of an active processor


def expected(value):
    """The mean over every draw of a function of the active processors of each client."""
    return sum(chance * value(count[:, 0]) for chance, count in every_draw(CHANCE[:, None], CAPACITY))


def test_z_p_is_a_constant_and_the_variance_of_the_step_size():
    constant = (2 / 0.2 + 2 * (2 + 1 / 4)) * 4 * 9
    factor = 2 * 8 * 9 / 0.2
    variance = expected(lambda active: (active @ WEIGHT - 1) ** 2)
    assert ROUND.z_p() == pytest.approx(constant + factor * variance)


def test_z_l_is_the_summed_variance_of_the_processors_losses():
    losses = np.array([0.3, -1.0, 2.5])

    def squares(active):
        off = active * ((WEIGHT - SHARE / CAPACITY) * losses) ** 2
        return (off + (CAPACITY - active) * (SHARE / CAPACITY * losses) ** 2).sum()

    factor = 2 * 8 * 9 / (0.5**2 * 0.4**2 * 0.2)
    assert ROUND.z_l(losses) == pytest.approx(factor * 4 * expected(squares))


def test_z_g_by_hand():
    sigma, spread, squares = np.array([1.0, 2.0, 0.0]), np.array([0.1, 0.0, 0.3]), np.array([4.0, 1.0, 9.0])
    minibatch = 2 * (2 * 0.25**2 * 1 / 0.4 + 0.3**2 * 4 / 0.9)
    heterogeneous = 4 * 2 * 2 * (0.5 * 0.1 + 0.2 * 0.3)
    updates = 5 * (2 * 0.25**2 * 4 / 0.4 + 0.3**2 * 1 / 0.9 + 0.2**2 * 9 / 0.2)
    assert ROUND.z_g(sigma, spread, squares) == pytest.approx(minibatch + heterogeneous + updates)


def test_z_g_bounds_the_variance_of_sampled_updates():
    gradients = np.random.default_rng(5).normal(size=(3, 2, 4))  # of each client in its K local steps
    updates, squares = gradients.sum(1), (gradients**2).sum((1, 2))
    variance = expected(lambda active: (((active * WEIGHT - SHARE) @ updates) ** 2).sum())
    largest = (CAPACITY / SHARE).max()
    nothing = np.zeros(3)
    assert variance <= SAMPLING.local_steps * ROUND.z_g(nothing, nothing, squares) / largest


def test_gamma_follows_the_condition_number_until_a_step_is_very_long():
    assert [SAMPLING.gamma(step_size) for step_size in (1.0, 8.0, 10.0)] == [64, 64, 80]


def test_v_tau_is_what_the_start_or_what_the_noise_contributes():
    assert SAMPLING.v_tau(64, start=2, noise=[1.0, 2.0]) == 64**2 * 4
    assert SAMPLING.v_tau(64, start=2, noise=[100.0, 200.0]) == 16**2 * 300


def test_squared_error_begins_at_the_start_and_vanishes_under_bounded_noise():
    assert SAMPLING.squared_error(64, start=2, noise=[]) == 4
    errors = np.array([SAMPLING.squared_error(64, 2, np.full(rounds, 1e3)) for rounds in (10**3, 10**4, 10**5)])
    np.testing.assert_allclose(errors[1:] / errors[:-1], 0.1, rtol=0.1)


def test_measured_squared_error_of_sampled_training_stays_below_the_bound():
    L, mu, *_ = CHAIN.constants()
    runs, K, rng, everyone = 40, 2, np.random.default_rng(6), np.arange(6)
    share, capacity, chance = np.full(6, 1 / 6), np.array([1, 2, 1, 1, 2, 1]), np.array([0.5, 0.6, 0.7, 0.8, 0.9, 1])
    gamma, visited = 32 * L / mu, [np.ones((runs, 7))]
    for tau in range(60):
        rate, w = 16 / (mu * ((tau + 1) * K + gamma)), visited[-1]
        weights = rng.binomial(capacity, chance, (runs, 6)) * share / (capacity * chance)
        assert 4 * K * weights.sum(1).max() <= gamma  # so gamma is the same in every round
        updates = w[:, None] - CHAIN.train(w, np.tile(everyone, (runs, 1)), rate, K)
        visited.append(w - (weights[..., None] * updates).sum(1))
    # Local steps below 1 / L only shorten a quadratic's gradient: the longest are those at the start of a round.
    gradients = CHAIN.gradients(np.repeat(np.array(visited)[:, :, None], 6, axis=2), everyone)
    lengths = np.linalg.norm(gradients, axis=-1)
    problem = SamplingProblem(
        smoothness=L, strong_convexity=mu, gradient_bound=float(lengths.max()), local_steps=K, probability_floor=0.5,
        optimum_gap=float(CHAIN.distance(CHAIN.optima).min()), gradient_gap=float(lengths.min()),
    )  # fmt: skip
    sampling = SamplingRound(problem, share, capacity, chance)
    spread = CHAIN.losses(CHAIN.optimum) - np.diag(CHAIN.losses(CHAIN.optima))
    noise = [
        sampling.z_g(np.zeros(6), spread, K * (lengths[tau] ** 2).mean(0))
        + sampling.z_l(np.sqrt((CHAIN.losses(w) ** 2).mean(0)))
        + sampling.z_p()
        for tau, w in enumerate(visited)
    ]
    start = float(CHAIN.distance(np.ones(7)))
    for tau, w in enumerate(visited):
        assert problem.learning_rate(tau, gamma) == pytest.approx(16 / (mu * ((tau + 1) * K + gamma)))
        assert (CHAIN.distance(w) ** 2).mean() <= problem.squared_error(gamma, start, noise[:tau]) * (1 + 1e-9)


# --- refusals ---------------------------------------------------------------------------------------------------------


@refusals(
    (lambda: replace(PROBLEM, smoothness=-1), "smoothness (L)", "-1", "L >= mu"),
    (lambda: replace(PROBLEM, smoothness=0.5), "smoothness (L) is 0.5", "L >= mu"),
    (lambda: replace(PROBLEM, strong_convexity=0), "strong_convexity (mu)", "positive number"),
    (lambda: replace(PROBLEM, gradient_bound=0), "gradient_bound (G)", "positive number"),
    (lambda: replace(PROBLEM, heterogeneity=-0.1), "heterogeneity (Gamma)", "-0.1", "at least 0"),
    (lambda: replace(PROBLEM, example_offset=-1), "example_offset (beta1)", "at least 0"),
    (lambda: replace(PROBLEM, example_factor=0.9), "example_factor (beta2)", "0.9", "at least 1"),
    (lambda: replace(PROBLEM, local_steps=1.5), "local_steps (E)", "1.5", "whole number"),
    (lambda: replace(PROBLEM, clients=0), "clients (N)", "whole number of at least 1"),
    (lambda: replace(PROBLEM, models=0), "models (M)", "whole number of at least 1"),
    (lambda: replace(PROBLEM, models=3), "clients (N) is 4", "multiple of models (M) = 3"),
    (lambda: replace(RAND, beta=1), "Theorem 1", "beta is 1", "beta > 1 / mu = 1"),
    (lambda: replace(RAND, gamma=15), "Theorem 1", "gamma is 15", "gamma > 4 L beta - 1 = 15"),
    (lambda: replace(ROTATE, gamma=3), "Theorem 2", "gamma is 3", "gamma > L beta - 1 = 3"),
    (lambda: replace(RAND, start=-1), "Theorem 1", "start is -1", "at least 0"),
    (lambda: replace(ROTATE, sample_error=-1), "Theorem 2", "sample_error (V)", "at least 0"),
    (lambda: RAND.error([3, 0]), "Theorem 1", "round is 0", "at least 1"),
    (lambda: RAND.rounds(0), "Theorem 1", "epsilon is 0", "positive number"),
    (lambda: theorem_3_applies(RAND, 0), "Theorem 3", "epsilon is 0", "positive number"),
)
def test_violated_conditions_of_bhuyan_et_al_are_named(make, words):
    with refused(*words):
        make()


@refusals(
    (lambda: replace(SAMPLING, smoothness=0.5), "sampling constants", "L >= mu"),
    (lambda: replace(SAMPLING, gradient_bound=0), "gradient_bound (sigma-bar)", "positive number"),
    (lambda: replace(SAMPLING, local_steps=0), "local_steps (K)", "whole number of at least 1"),
    (lambda: replace(SAMPLING, probability_floor=0), "probability_floor (theta)", "(0, 1]"),
    (lambda: replace(SAMPLING, optimum_gap=0), "optimum_gap (e_w)", "positive number"),
    (lambda: replace(SAMPLING, gradient_gap=0), "gradient_gap (e_f)", "positive number"),
    (lambda: replace(SAMPLING, gradient_gap=4), "gradient_gap (e_f) is 4", "e_f <= sigma-bar"),
    (lambda: SAMPLING.gamma(-1), "gamma_tau", "step_size", "at least 0"),
    (lambda: SAMPLING.v_tau(63, 1, []), "V_tau", "gamma is 63", "32 L / mu = 64"),
    (lambda: SAMPLING.v_tau(64, -1, []), "V_tau", "start", "at least 0"),
    (lambda: SAMPLING.v_tau(64, 1, [1, -1]), "V_tau", "noise (z)", ">= 0"),
    (lambda: SAMPLING.v_tau(64, 1, 5.0), "V_tau", "noise (z)", "each round"),
    (lambda: replace(ROUND, share=np.float64(1)), "dimensions of share is 0", "expected 1"),
    (lambda: replace(ROUND, share=np.array([0.5, 0.5])), "(3,)", "(2,)", "sampling round"),
    (lambda: replace(ROUND, share=np.array([0.5, 0.5, 0])), "share (d) of client 2 is 0", "> 0"),
    (lambda: replace(ROUND, share=SHARE / 2), "sum of shares (d) is 0.5", "expected 1"),
    (lambda: replace(ROUND, capacity=np.array([2, 0, 1])), "capacity (B) of client 1 is 0", "at least 1"),
    (lambda: replace(ROUND, probability=CHANCE / 2), "probability (p) of client 2 is 0.1", "theta = 0.2"),
    (lambda: replace(ROUND, probability=2 * CHANCE), "probability (p) of client 1 is 1.8", "p <= 1"),
    (lambda: ROUND.z_l(np.ones(2)), "losses (f)", "(2,)", "(3,)"),
    (lambda: ROUND.z_l(np.array([1, np.nan, 1])), "losses (f) of client 1 is nan", "finite"),
    (lambda: ROUND.z_g(-SHARE, SHARE, SHARE), "minibatch_noise of client 0 is -0.5", ">= 0"),
    (lambda: ROUND.z_g(SHARE, -SHARE, SHARE), "heterogeneity of client 0 is -0.5", ">= 0"),
    (lambda: ROUND.z_g(SHARE, SHARE, 100 * SHARE), "gradient_squares of client 0 is 50", "sigma-bar^2 = 18"),
)
def test_violated_conditions_of_zhang_et_al_are_named(make, words):
    with refused(*words):
        make()
