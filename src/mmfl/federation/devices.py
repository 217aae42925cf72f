"""Devices by distribution: each function describes a population, from which every client gets a device.

Numbers are labelled by where they come from. *FedScale*, *FedAST* and *Venn* are figures that these projects publish
with their code; *convention* is a round number of ours.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mmfl.checks import check, check_at_least, check_positive
from mmfl.errors import UserError, nearest
from mmfl.federation.device_profiles import REFERENCE, Devices, Jitter
from mmfl.federation.sessions import AlwaysOn, Sessions, SessionTrace, check_cycle, cycles

Population = Callable[[int, np.random.Generator], Devices]
"""Gives a number of clients their devices."""

_MEDIAN_MS, _SIGMA_MS = 61.0, 0.78  # of 952 phones of AI-Benchmark, in Venn's repository
_MEAN_MBIT = 13.7  # FedScale
_SIGMA_MBIT = 1.0  # convention: the spread of bandwidths is not published
_THREE_SPEEDS = (1.3, 1.0, 0.7)  # FedAST: factors of a quarter, half and a quarter of the clients
_FEDAST_SCALE = 27.0  # FedAST: T = 27 c (shift + Exp(mean)), shift = mean / 2
_COLUMNS = ("milliseconds", "down", "up", "latency", "memory", "joules_per_second", "joules_per_byte")


def phones(
    *,
    jitter: float = 0.5,
    latency: float = 0.0,
    memory: float = np.inf,
    reference: float = REFERENCE,
    sessions: Sequence[float] | None = None,
) -> Population:
    """Phones of 2023. Milliseconds per example are log-normal with median 61 and sigma 0.78 (952 phones of
    AI-Benchmark, published by *Venn*), bandwidth with mean 13.7 Mbit/s (*FedScale*) and sigma 1 (*convention*).

    The jitter from training to training is log-normal (0.5: APPFL). `memory` is in bytes. `sessions=(300, 600)`: phones
    can be reached for 300 seconds and not for 600 in turn, 20% more or less, from random phases (APPFL).

    >>> devices = phones()(1000, np.random.default_rng(0))
    >>> np.median(devices.milliseconds).round(), devices.down.mean().round()
    (np.float64(58.0), np.float64(14.0))
    """
    where = "devices 'phones'"
    check_at_least(where, "jitter", jitter, 0)
    check_at_least(where, "latency", latency, 0)
    check_positive(where, "reference", reference)
    check(memory > 0, where, "memory", memory, "a positive number of bytes")
    check_cycle(where, sessions)

    def population(clients: int, rng: np.random.Generator) -> Devices:
        milliseconds = _MEDIAN_MS * np.exp(_SIGMA_MS * rng.normal(size=clients))
        rate = _MEAN_MBIT * np.exp(_SIGMA_MBIT * rng.normal(size=clients) - _SIGMA_MBIT**2 / 2)
        return Devices(
            milliseconds,
            rate,
            rate,
            np.full(clients, float(latency)),
            np.full(clients, float(memory)),
            _sessions(sessions, clients, rng),
            Jitter(float(jitter)),
            float(reference),
        )

    return population


def three_speeds(
    mean: float | Sequence[float] = 0.24, *, scale: float = _FEDAST_SCALE, sessions: Sequence[float] | None = None
) -> Population:
    """A quarter of the clients slow, half medium, a quarter fast: T = 27 c (mean / 2 + Exp(mean)) seconds with c = 1.3,
    1 and 0.7, whatever the model (*FedAST*, whose means are 0.148 for MNIST, 0.24 for Fashion-MNIST, 0.228 for CIFAR-10
    and 0.555 for Shakespeare). `mean` is one number for all tasks or one for each."""
    where = "devices 'three-speeds'"
    means = _per_task(where, "mean", mean)
    check_positive(where, "scale", scale)
    check_cycle(where, sessions)

    def population(clients: int, rng: np.random.Generator) -> Devices:
        place = rng.permutation(clients) / clients
        factor = np.select([place < 0.25, place < 0.75], _THREE_SPEEDS[:2], _THREE_SPEEDS[2])
        seconds = scale * factor[:, None] * (1.5 * means)
        return Devices.timed(seconds, Jitter(shift=1 / 3), _sessions(sessions, clients, rng))

    return population


def shifted_exponential(
    mean: float | Sequence[float] = 20.0,
    shift: float | Sequence[float] = 10.0,
    *,
    factors: Sequence[float] = (1.0,),
    sessions: Sequence[float] | None = None,
) -> Population:
    """T = c (shift + Exp(mean)) seconds, whatever the model: one mean and shift for all tasks, or one for each. The
    factors c are repeated over the clients.

    >>> shifted_exponential(20.0, 10.0, factors=[1, 3])(4, np.random.default_rng(0)).seconds[:, 0]
    array([30., 90., 30., 90.])
    """
    where = "devices 'shifted-exponential'"
    means, shifts = _per_task(where, "mean", mean), _per_task(where, "shift", shift, 0)
    if len(means) != len(shifts) and 1 not in (len(means), len(shifts)):
        raise UserError(f"{where}: {len(means)} means and {len(shifts)} shifts; expected as many, or one of them.")
    pattern = _positive(where, "factors", factors)
    check_cycle(where, sessions)
    together = means + shifts

    def population(clients: int, rng: np.random.Generator) -> Devices:
        seconds = np.resize(pattern, clients)[:, None] * together
        share = tuple((shifts / together).tolist())
        return Devices.timed(seconds, Jitter(shift=share), _sessions(sessions, clients, rng))

    return population


def uniform(
    low: float = 10.0, high: float = 60.0, *, jitter: float = 0.0, sessions: Sequence[float] | None = None
) -> Population:
    """Every client takes a time of its own, uniform between `low` and `high` seconds, whatever the model; with
    `jitter`, log-normal around it."""
    where = "devices 'uniform'"
    check_positive(where, "low", low)
    check_at_least(where, "high", high, low)
    check_at_least(where, "jitter", jitter, 0)
    check_cycle(where, sessions)

    def population(clients: int, rng: np.random.Generator) -> Devices:
        seconds = rng.uniform(low, high, (clients, 1))
        return Devices.timed(seconds, Jitter(float(jitter)), _sessions(sessions, clients, rng))

    return population


def from_arrays(
    *,
    milliseconds: ArrayLike = 0.0,
    seconds: ArrayLike | None = None,
    down: ArrayLike = np.inf,
    up: ArrayLike = np.inf,
    latency: ArrayLike = 0.0,
    memory: ArrayLike = np.inf,
    sessions: Mapping[str, Any] | None = None,
    jitter: float = 0.0,
    reference: float = REFERENCE,
    joules_per_second: ArrayLike | None = None,
    joules_per_byte: ArrayLike | None = None,
) -> Population:
    """Your own numbers: arrays with an entry for each client, or one number for all (`Devices` says what they are).

    `sessions` has arrays `client`, `begin` and `end` (seconds) and, if the trace begins again, its `period`.

    >>> population = from_arrays(milliseconds=[10, 20], down=50.0, up=10.0)
    >>> population(2, np.random.default_rng(0)).up
    array([10., 10.])
    """
    where = "devices 'from-arrays'"
    columns: dict[str, ArrayLike | None] = {
        "milliseconds": milliseconds,
        "down": down,
        "up": up,
        "latency": latency,
        "memory": memory,
        "joules_per_second": joules_per_second,
        "joules_per_byte": joules_per_byte,
    }
    numbers = {name: _numbers(where, name, each) for name, each in columns.items() if each is not None}
    given = None if seconds is None else _positive(where, "seconds", seconds, 2)
    check_at_least(where, "jitter", jitter, 0)
    check_positive(where, "reference", reference)
    if sessions is not None:
        keys = {"client", "begin", "end", "period"}
        unknown = next((key for key in sessions if key not in keys), None)
        if unknown is not None:
            raise UserError(f"{where}: sessions has unknown key '{unknown}': {nearest(str(unknown), keys)}")
        missing = next((key for key in ("client", "begin", "end") if key not in sessions), None)
        if missing is not None:
            raise UserError(f"{where}: sessions lacks '{missing}'; expected client, begin and end.")

    def population(clients: int, rng: np.random.Generator) -> Devices:
        for name, each in [*numbers.items(), *([] if given is None else [("seconds", given)])]:
            if each.ndim and len(each) != clients:
                raise UserError(f"{where}: {name} has {len(each)} entries for {clients} clients.")
        full = {name: np.broadcast_to(each, clients).copy() for name, each in numbers.items()}
        trace = AlwaysOn(clients) if sessions is None else SessionTrace(**sessions, clients=clients)
        table = None
        if given is not None:
            table = given if given.ndim == 2 else np.broadcast_to(given, clients)[:, None].copy()
        return Devices(sessions=trace, jitter=Jitter(float(jitter)), reference=float(reference), seconds=table, **full)

    return population


def from_file(
    path: str | Path, sessions: str | Path | None = None, *, period: float | None = None, **options: Any
) -> Population:
    """A trace: a CSV file with a row for each device, or an NPZ file with an array for each column.

    Columns are named like the options of `from_arrays`, such as `milliseconds`, `down` and `up`, or `seconds`. If it
    has more devices than there are clients, random ones are taken. `sessions` is a second file with the columns
    `client`, `begin` and `end`, in seconds; it begins again after `period`. Other options are those of `from_arrays`.
    """
    where = f"devices '{path}'"
    columns: dict[str, Any] = dict(_read(Path(path)))
    known = (*_COLUMNS, "seconds")
    unknown = next((name for name in columns if name not in known), None)
    if unknown is not None:
        raise UserError(f"{where}: unknown column '{unknown}': {nearest(unknown, known)}")
    rows = len(next(iter(columns.values())))
    recorded = None if sessions is None else _read(Path(sessions))
    if recorded is not None and "client" in recorded:
        recorded = {**recorded, "client": recorded["client"].astype(np.int64)}
    from_arrays(**columns, **options)  # refuses wrong numbers now

    def population(clients: int, rng: np.random.Generator) -> Devices:
        if rows < clients:
            raise UserError(f"{where} has {rows} devices for {clients} clients; expected at least as many.")
        chosen = np.arange(clients) if rows == clients else np.sort(rng.permutation(rows)[:clients])
        trace: dict[str, Any] | None = None
        if recorded is not None:
            place = np.full(rows, -1)
            place[chosen] = np.arange(clients)
            number = recorded.get("client", np.zeros(0, dtype=np.int64))
            valid = bool(((number >= 0) & (number < rows)).all())
            check(valid, where, "client", number, f"numbers from 0 to {rows - 1} in the sessions")
            kept = place[number] >= 0
            trace = {name: each[kept] for name, each in recorded.items()}
            trace |= {"client": place[number[kept]], "period": period}
        own: dict[str, Any] = {name: each[chosen] for name, each in columns.items()}
        return from_arrays(**own, sessions=trace, **options)(clients, rng)

    return population


def _sessions(given: Sequence[float] | None, clients: int, rng: np.random.Generator) -> Sessions:
    return AlwaysOn(clients) if given is None else cycles(given[0], given[1], clients, rng)


def _per_task(where: str, name: str, value: ArrayLike, minimum: float | None = None) -> NDArray[np.float64]:
    """One number for all tasks or one for each, [tasks] or [1]."""
    numbers = np.atleast_1d(_positive(where, name, value) if minimum is None else _numbers(where, name, value))
    return np.asarray(numbers)


def _positive(where: str, name: str, value: ArrayLike, dimensions: int = 1) -> NDArray[np.float64]:
    numbers = _numbers(where, name, value, dimensions)
    valid = numbers.size > 0 and bool((numbers > 0).all() and np.isfinite(numbers).all())
    check(valid, where, name, value, "positive numbers")
    return numbers


def _numbers(where: str, name: str, value: ArrayLike, dimensions: int = 1) -> NDArray[np.float64]:
    """Numbers of at least 0; rates and memory above 0."""
    expected = "positive numbers" if name in ("down", "up", "memory") else "numbers of at least 0"
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.full(1, np.nan)
    least = np.nextafter(0.0, 1.0) if name in ("down", "up", "memory") else 0.0
    infinite = name in ("down", "up", "memory")
    right = bool((numbers >= least).all()) and (infinite or bool(np.isfinite(numbers).all()))
    check(right and numbers.ndim <= dimensions, where, name, value, expected)
    return numbers


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """The columns of a CSV or NPZ file."""
    where = f"devices '{path}'"
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                columns = {name: np.asarray(file[name]) for name in file.files}
        elif path.suffix == ".csv":
            with path.open(newline="") as text:
                table = list(csv.reader(text))
            header, body = (table[0] if table else []), table[1:]
            columns = {name.strip(): np.array([float(row[n]) for row in body]) for n, name in enumerate(header)}
        else:
            raise UserError(f"{where} ends in '{path.suffix}'; expected .csv or .npz.")
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror or error}.") from None
    except (ValueError, IndexError) as error:
        raise UserError(f"{where} cannot be read: {error}.") from None
    if not columns or len({len(each) for each in columns.values()}) > 1 or not len(next(iter(columns.values()))):
        raise UserError(f"{where} has no rows, or columns of different lengths.")
    return columns


DEVICES: Mapping[str, Callable[..., Population]] = {
    "phones": phones,
    "three-speeds": three_speeds,
    "shifted-exponential": shifted_exponential,
    "uniform": uniform,
    "from-arrays": from_arrays,
    "from-file": from_file,
}
