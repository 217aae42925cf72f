"""Differential privacy: updates are clipped and get noise; an accountant gives the cost.

With `Privacy` every client adds its own noise before an update leaves it, so that nobody else sees its raw update. With
`CentralNoise` the server adds noise once, to the sum of the updates of a round, which protects clients from those who
see the models. What else the server learns (losses, norms, sizes) is not protected; `docs/privacy.md` lists it.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mmfl.checks import check, is_number, is_positive, is_whole
from mmfl.errors import UserError, nearest
from mmfl.randomness import Purpose, bits, normal
from mmfl.tensors import to_device

Change = Literal["replaced", "absent"]
"""What an observer should not be able to tell from the truth: any other data of the client, or an update of zero."""

_SENSITIVITY: Mapping[Change, float] = {"replaced": 2.0, "absent": 1.0}  # in units of `clip`
_MARGIN = 1e-9  # noise is rounded up by this factor, which exceeds the error of the accountant's root search
_BATCH_BYTES = 2**25  # noise drawn at a time


@dataclass(frozen=True, eq=False)
class NoiseAddress:
    """The address of the noise in a simulation; row n of the updates belongs to `client[n]`. The round is one for all,
    or a number for each row."""

    seed: int
    round: int | NDArray[np.int64]
    task: int
    client: NDArray[np.int64]


@dataclass(frozen=True)
class Privacy:
    """What a client does to an update before sending it: clips its norm to `clip` and adds Gaussian noise.

    The noise has standard deviation `noise` * `clip`; `noise` is the noise multiplier z, the one number that the
    accountant (`epsilon`) needs. Clipping without noise limits the influence of a client on a model, but gives no
    privacy. By default updates are sent unchanged.

    >>> updates = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> Privacy(clip=1.0).protect(updates)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """

    clip: float | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        valid = self.clip is None or is_positive(self.clip)
        check(valid, "privacy", "clip", self.clip, "a finite norm > 0, or none for no clipping")
        _check_noise(self.noise)
        if self.noise > 0 and self.clip is None:
            raise UserError(
                f"privacy: noise is {self.noise} without clip; expected clip too, the norm that noise is a multiple of."
            )

    def protect(self, updates: Tensor, address: NoiseAddress | None = None) -> Tensor:
        """The updates [clients, parameters], clipped and with noise: what the clients send.

        Without an `address` the noise comes from the operating system's cryptographic generator and differs in every
        call. Nobody can predict it, and a server that requests the same round twice does not get the same noise twice,
        which would help it to remove the noise. Use this for real clients.

        With an `address` the noise is a function of (seed, round, task, client), so that simulations are reproducible.
        It comes from the package's counter-based generator, which is statistically good and fast on any device, but not
        secret: anyone who knows or guesses the seed can subtract the noise.

        With noise, an update that is not finite is replaced by zero, since a failed training would reveal something
        about the data. Without noise it is sent as it is, and the receiver rejects it.
        """
        _check_rows(updates, address)
        if self.clip is None or not updates.numel():
            return updates
        norms = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
        scale = (self.clip / norms).clamp(max=1.0)[:, None]
        if self.noise == 0:
            clipped: Tensor = updates * scale.to(updates)
            return clipped
        finite, protected = torch.isfinite(norms)[:, None], torch.empty_like(updates)
        size = max(_BATCH_BYTES // (8 * updates.shape[1]), 1)
        for begin in range(0, len(updates), size):
            rows = slice(begin, begin + size)
            exact = torch.where(finite[rows], updates[rows].double() * scale[rows], 0.0)
            protected[rows] = exact + self.noise * self.clip * normal(_random_words(exact, rows, address))
        return protected


def epsilon(noise: float, releases: int, delta: float, change: Change = "replaced") -> float:
    """The privacy cost of protected updates: together, `releases` of them are (epsilon, delta)-differentially private.

    - `noise` is the noise multiplier z of `Privacy`, the same for all updates.
    - `releases` is the number of updates that the client sent, over all rounds and tasks.
    - The client's whole data set is protected, against everyone including the server. `change` is the alternative that
      it must be indistinguishable from: any other data ("replaced": two clipped updates are up to 2 clip apart), or an
      update of zero ("absent": up to clip apart, a weaker guarantee).

    Each release is a Gaussian mechanism, and k of them are exactly equivalent to one with noise z / sqrt(k), even if
    each update depends on those before it (Dong, Roth & Su 2022). There is no amplification by sampling: the server
    sees who sent what. For observers who see only the models the usual result does not apply either, as the amount of
    noise depends on which clients were drawn.

    >>> round(epsilon(noise=10.0, releases=25, delta=1e-6), 3)
    4.887
    """
    _check_noise(noise)
    _check_delta(delta)
    check(is_whole(releases, 0), "privacy", "releases", releases, "how many updates were sent, at least 0")
    if releases == 0:
        return 0.0
    ratio = noise / (_sensitivity(change) * math.sqrt(releases))
    return float(_accounting().get_epsilon_gaussian(ratio, delta))


def epsilons(noise: float, releases: ArrayLike, delta: float, change: Change = "replaced") -> NDArray[np.float64]:
    """`epsilon` of every client, given how many updates each of them sent, [clients].

    `run.participation.sum(axis=1)` gives these numbers. If two processors of a client drew the same task it counts two
    for a single update, so the result is an upper bound.
    """
    counts, which = np.unique(np.asarray(releases, dtype=np.int64), return_inverse=True)
    return np.array([epsilon(noise, int(count), delta, change) for count in counts])[which]


@dataclass(frozen=True)
class Budget:
    """A privacy budget (epsilon, delta) for all updates that a client will ever send.

    A client that stops sending before the budget is spent keeps the guarantee, even if its updates influence when it is
    drawn. Computing `epsilon` afterwards gives the same guarantee only if the draw does not depend on clients' data.

    >>> budget = Budget(epsilon=8.0, delta=1e-6)
    >>> budget.releases(noise=10.0)
    58
    """

    epsilon: float
    delta: float
    change: Change = "replaced"

    def __post_init__(self) -> None:
        check(is_positive(self.epsilon), "privacy", "epsilon", self.epsilon, "a finite number > 0")
        _check_delta(self.delta)
        _sensitivity(self.change)

    def releases(self, noise: float) -> int:
        """How many updates a client may send with noise multiplier `noise`."""
        _check_noise(noise)
        return math.floor((noise / self._noise_for_one) ** 2)

    def noise(self, releases: int) -> float:
        """The smallest noise multiplier with which a client may send this many updates."""
        check(is_whole(releases, 1), "privacy", "releases", releases, "how many updates to send, at least 1")
        return self._noise_for_one * math.sqrt(releases) * (1 + _MARGIN)

    @property
    def _noise_for_one(self) -> float:
        """The noise multiplier that a single update needs."""
        sigma = float(_accounting().get_sigma_gaussian(self.epsilon, self.delta))
        return _sensitivity(self.change) * sigma * (1 + _MARGIN)


@dataclass(frozen=True)
class CentralNoise:
    """Gaussian noise on the sum of a round's updates, none of which is longer than `clip`.

    A step is a sum of updates G with coefficients c, such as the weights d / (B p) of inverse probabilities. If one
    client had another update, it would change by at most 2 c `clip`. The noise has standard deviation
    `noise` * `clip` * max c, with the largest coefficient of the clients drawn in the round. `delta` and `change` are
    those of `epsilon`.

    The noise of a simulation is a function of (seed, round, task), that of a deployment comes from the operating
    system's cryptographic generator (`secret`).
    """

    clip: float
    noise: float
    delta: float = 1e-6
    change: Change = "replaced"
    secret: bool = False

    def __post_init__(self) -> None:
        where = "central noise"
        check(is_positive(self.clip), where, "clip", self.clip, "a finite norm > 0")
        check(is_positive(self.noise), where, "noise", self.noise, "a finite multiplier of clip, > 0")
        _check_delta(self.delta, where)
        _sensitivity(self.change, where)
        _accounting()  # asked now, and not after the first round

    def draw(self, like: Tensor, coefficients: NDArray[np.float64], seed: int, round: int, task: int) -> Tensor:
        """The noise of one sum, in double precision."""
        size = self.noise * self.clip * float(np.abs(coefficients).max())
        if self.secret:
            return size * normal(_secret_words(like))
        key = bits(seed, Purpose.CENTRAL_NOISE, round, task)
        return size * normal(bits(key.to(like.device), torch.arange(len(like), device=like.device)))

    def losses(self, coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
        """What one sum costs each client in it: the square of how far it can move the sum, in units of the noise's
        standard deviation, (Delta c / (z max c))^2. These add up over sums."""
        moved = _sensitivity(self.change) * np.abs(coefficients)
        return np.asarray(np.square(moved / (self.noise * np.abs(coefficients).max())))


@dataclass(frozen=True, eq=False)
class PrivacySpent:
    """What a run with `CentralNoise` has cost each client so far: the sums of its `losses`, [clients]."""

    losses: NDArray[np.float64]
    delta: float

    @property
    def largest(self) -> float:
        """The epsilon of the client that paid most."""
        return self._epsilon(float(self.losses.max(initial=0.0)))

    def epsilons(self) -> NDArray[np.float64]:
        """The epsilon of each client over the run, [clients], with which its data is (epsilon, delta)-private.

        Sums of Gaussian mechanisms are one with the sum of the squares (Dong, Roth & Su 2022). Losses are rounded up to
        three digits, so that few values are left to compute.
        """
        known, which = np.unique(_rounded_up(self.losses), return_inverse=True)
        return np.array([self._epsilon(float(loss)) for loss in known])[which]

    def _epsilon(self, loss: float) -> float:
        return float(_accounting().get_epsilon_gaussian(1 / math.sqrt(loss), self.delta)) if loss else 0.0


def _rounded_up(values: NDArray[np.float64], digits: int = 3) -> NDArray[np.float64]:
    """Positive values with so many significant digits."""
    unit = 10.0 ** (np.floor(np.log10(values, out=np.zeros_like(values), where=values > 0)) - digits + 1)
    return np.asarray(np.ceil(values / unit - _MARGIN) * unit)


def _random_words(like: Tensor, rows: slice, address: NoiseAddress | None) -> Tensor:
    """64 random bits for every entry of these rows."""
    if address is None:
        return _secret_words(like)
    client = to_device(np.ascontiguousarray(address.client[rows]), like.device)
    number = address.round if isinstance(address.round, int) else to_device(address.round[rows], like.device)
    key = bits(address.seed, Purpose.NOISE, number, address.task, client)
    return bits(key[:, None], torch.arange(like.shape[1], device=like.device))


def _secret_words(like: Tensor) -> Tensor:
    """64 bits of the operating system's generator for every entry."""
    words = torch.frombuffer(bytearray(os.urandom(8 * like.numel())), dtype=torch.int64)
    return words.view(like.shape).to(like.device)


def _accounting() -> Any:
    try:
        return import_module("dp_accounting")
    except ModuleNotFoundError as missing:
        raise UserError(
            f"privacy: the accountant needs '{missing.name}'; expected the extra: pip install 'mmfl[privacy]'."
        ) from None


def _sensitivity(change: Change, where: str = "privacy") -> float:
    if change not in _SENSITIVITY:
        raise UserError(f"{where}: unknown change '{change}': {nearest(str(change), _SENSITIVITY)}")
    return _SENSITIVITY[change]


def _check_noise(noise: float) -> None:
    check(is_number(noise, 0, math.inf), "privacy", "noise", noise, "a finite multiplier of clip, at least 0")


def _check_delta(delta: float, where: str = "privacy") -> None:
    valid = is_positive(delta) and delta < 1
    check(valid, where, "delta", delta, "a probability in (0, 1), such as 1e-6")


def _check_rows(updates: Tensor, address: NoiseAddress | None) -> None:
    if updates.ndim != 2 or not updates.is_floating_point():
        shape = list(updates.shape)
        raise UserError(f"privacy: updates are {updates.dtype} {shape}; expected floats [clients, parameters].")
    if address is not None and len(address.client) != len(updates):
        raise UserError(f"privacy: {len(address.client)} clients for {len(updates)} updates; expected one for each.")
