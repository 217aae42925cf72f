"""Privacy: updates are clipped and noised before they leave a client, and an accountant says what they tell.

Here is the local model: every client adds its own noise and trusts nobody with an update that has none. What the server
learns besides updates (losses, norms, sizes) is not touched; `docs/privacy.md` lists it.
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
from mmfl.randomness import Purpose, bits
from mmfl.tensors import to_device

Change = Literal["replaced", "absent"]
"""Two worlds that an observer is to confuse: the client has other data (any other), or its update is zero."""

_SENSITIVITY: Mapping[Change, float] = {"replaced": 2.0, "absent": 1.0}  # in units of `clip`
_MARGIN = 1e-9  # by which noise is rounded up: far more than the root search is off, far less than anyone notices
_BATCH = 2**25  # bytes of noise to draw at once


@dataclass(frozen=True, eq=False)
class Place:
    """Where noise is drawn in a simulation: row n of the updates belongs to `client[n]`."""

    seed: int
    round: int
    task: int
    client: NDArray[np.int64]


@dataclass(frozen=True)
class Privacy:
    """What a client does to an update before it leaves: no longer than `clip`, and Gaussian noise on every entry.

    The noise has standard deviation `noise` * `clip`: `noise` is the multiplier z, the one number that the accountant
    (`epsilon`) needs. Clipping without noise limits what one client can do to a model and promises it nothing. By
    default nothing is changed.

    >>> updates = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> Privacy(clip=1.0).protect(updates)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """

    clip: float | None = None
    noise: float = 0.0

    def __post_init__(self) -> None:
        right = self.clip is None or is_positive(self.clip)
        check(right, "privacy", "clip", self.clip, "a finite norm > 0, or none for no clipping")
        _check_noise(self.noise)
        if self.noise > 0 and self.clip is None:
            raise UserError(
                f"privacy: noise is {self.noise} without clip; expected clip too, the norm that noise is a multiple of."
            )

    def protect(self, updates: Tensor, place: Place | None = None) -> Tensor:
        """The updates [clients, parameters] as they may leave their clients, a row each.

        Without a `place` the noise comes from the operating system's cryptographic generator, new with every call: no
        one can predict it, and a server that asks for the same round twice does not get the same noise twice, whose
        difference would show the update. This is the one to use for real clients.

        With a `place` the noise is a function of (seed, round, task, client), so that a simulation repeats whatever the
        order of its work. It comes from the package's counter-based generator, which is statistically sound and fast on
        any device, but no secret: who knows or guesses the seed can subtract it.

        Where there is noise, an update that is not finite counts as zero: that training failed, and where, would tell
        something of the data. Without noise it stays not finite, and is rejected by who receives it.
        """
        _check_rows(updates, place)
        if self.clip is None or not updates.numel():
            return updates
        norms = torch.linalg.vector_norm(updates, dim=1, dtype=torch.float64)
        scale = (self.clip / norms).clamp(max=1.0)[:, None]
        if self.noise == 0:
            clipped: Tensor = updates * scale.to(updates)
            return clipped
        finite, protected = torch.isfinite(norms)[:, None], torch.empty_like(updates)
        size = max(_BATCH // (8 * updates.shape[1]), 1)
        for begin in range(0, len(updates), size):
            rows = slice(begin, begin + size)
            exact = torch.where(finite[rows], updates[rows].double() * scale[rows], 0.0)
            protected[rows] = exact + self.noise * self.clip * _normal(_words(exact, rows, place))
        return protected


def epsilon(noise: float, releases: int, delta: float, change: Change = "replaced") -> float:
    """What sending so many protected updates costs a client: they are (epsilon, delta)-differentially private.

    - `noise` is the multiplier z of `Privacy`, the same for all of them.
    - `releases` counts the updates that the client really sent, all rounds and all tasks.
    - What is protected is the client's whole data set, against everyone including the server. `change` says against
      which alternative: any other data in its place ("replaced": two clipped updates are up to 2 clip apart), or an
      update of zero in its place ("absent": up to clip apart, a weaker promise at half the distance).

    Each release is a Gaussian mechanism, and k of them are worth one with noise z / sqrt(k), exactly, even if each
    update depends on those before it (Dong, Roth & Su 2022). There is no amplification by sampling in it: the server
    sees who sent what, and for those who see models alone the usual result does not apply either, as the noise comes
    with the clients drawn.

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
    """`epsilon` of every client, given how many updates each has sent, [clients].

    `run.participation.sum(axis=1)` has these numbers; where two processors of a client drew the same task it counts two
    for one update, so it is never too low.
    """
    counts, which = np.unique(np.asarray(releases, dtype=np.int64), return_inverse=True)
    return np.array([epsilon(noise, int(count), delta, change) for count in counts])[which]


@dataclass(frozen=True)
class Budget:
    """The most that a client is willing to tell: (epsilon, delta), over all updates it will ever send.

    A client that stops sending in time keeps to it, however its earlier updates decide when it is asked again. What the
    updates have cost, looked up afterwards, is as good only where the draw looks at nobody's data.

    >>> budget = Budget(epsilon=8.0, delta=1e-6)
    >>> budget.releases(noise=10.0)
    58
    """

    epsilon: float
    delta: float
    change: Change = "replaced"

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:
            raise UserError(f"privacy: epsilon is {self.epsilon}; expected a finite number > 0.")
        _check_delta(self.delta)
        _sensitivity(self.change)

    def releases(self, noise: float) -> int:
        """How many updates with noise multiplier `noise` a client may send."""
        _check_noise(noise)
        return math.floor((noise / self._least) ** 2)

    def noise(self, releases: int) -> float:
        """The least noise multiplier with which a client may send so many updates."""
        check(is_whole(releases, 1), "privacy", "releases", releases, "how many updates to send, at least 1")
        return self._least * math.sqrt(releases) * (1 + _MARGIN)

    @property
    def _least(self) -> float:
        """The noise multiplier that a single update needs."""
        sigma = float(_accounting().get_sigma_gaussian(self.epsilon, self.delta))
        return _sensitivity(self.change) * sigma * (1 + _MARGIN)


def _words(like: Tensor, rows: slice, place: Place | None) -> Tensor:
    """64 random bits for every entry of these rows."""
    if place is None:
        words = torch.frombuffer(bytearray(os.urandom(8 * like.numel())), dtype=torch.int64)
        return words.view(like.shape).to(like.device)
    client = to_device(np.ascontiguousarray(place.client[rows]), like.device)
    key = bits(place.seed, Purpose.NOISE, place.round, place.task, client)
    return bits(key[:, None], torch.arange(like.shape[1], device=like.device))


def _normal(words: Tensor) -> Tensor:
    """Standard normal numbers, float64, from 64 random bits each: one for the sign, 53 for the size."""
    lower = (((words >> 11) & (2**53 - 1)).double() + 0.5) * 2.0**-54
    normal: Tensor = torch.special.ndtri(lower) * (1 - 2 * (words & 1))
    return normal


def _accounting() -> Any:
    try:
        return import_module("dp_accounting")
    except ModuleNotFoundError as missing:
        raise UserError(
            f"privacy: the accountant needs '{missing.name}'; expected the extra: pip install 'mmfl[privacy]'."
        ) from None


def _sensitivity(change: Change) -> float:
    if change not in _SENSITIVITY:
        raise UserError(f"privacy: unknown change '{change}': {nearest(str(change), _SENSITIVITY)}")
    return _SENSITIVITY[change]


def _check_noise(noise: float) -> None:
    check(is_number(noise, 0, math.inf), "privacy", "noise", noise, "a finite multiplier of clip, at least 0")


def _check_delta(delta: float) -> None:
    right = is_positive(delta) and delta < 1
    check(right, "privacy", "delta", delta, "a probability in (0, 1), such as 1e-6")


def _check_rows(updates: Tensor, place: Place | None) -> None:
    if updates.ndim != 2 or not updates.is_floating_point():
        shape = list(updates.shape)
        raise UserError(f"privacy: updates are {updates.dtype} {shape}; expected floats [clients, parameters].")
    if place is not None and len(place.client) != len(updates):
        raise UserError(f"privacy: {len(place.client)} clients for {len(updates)} updates; expected one for each.")
