"""The records of a run, a line of JSON for every method and seed in every round, read and checked in one place.

An incomplete last line is normal after a crash; anywhere else it is damage. Whatever reads records learns here whether
some are missing, repeated or broken. Nothing here needs torch.
"""

import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from mmfl.record import RoundRecord
from mmfl.runs.files import TailReader

_KINDS = {"round": int, "method": str, "seed": int, "tasks": dict, "clients": int, "cost": dict}  # in every version
_START = re.compile(rb'\{"round": (\d+), "method": ("(?:[^"\\]|\\.)*"), "seed": (\d+), ')
_MOST_NAMED = 5  # ranges of rounds, replicas or lines that a message lists
_Replica = tuple[str, int]


class Records:
    """The records in some lines, the first of each round, method and seed, and what is wrong with them.

    >>> line = '{"round": %d, "method": "random", "seed": 0, "tasks": {}, "clients": 4, "cost": {}}'
    >>> Records([(line % t).encode() for t in (1, 2, 4, 4)]).problem()
    'round 3 is missing'
    """

    def __init__(self, lines: Iterable[bytes] = ()):
        self._records: list[RoundRecord] = []
        self._rounds: dict[_Replica, dict[int, int]] = {}  # and a hash of the line
        self._broken: list[int] = []
        self._repeated: dict[_Replica, list[int]] = {}
        self._contradicted: dict[_Replica, list[int]] = {}
        self._lines = 0
        self.add(lines)

    def add(self, lines: Iterable[bytes]) -> None:
        """Reads further lines."""
        for line in lines:
            self._lines += 1
            if not line.strip():
                continue
            record = parse(line)
            if record is None:
                self._broken.append(self._lines)
                continue
            replica, round, mark = (record.method, record.seed), record.round, hash(line.strip())
            known = self._rounds.setdefault(replica, {})
            if round not in known:
                known[round] = mark
                self._records.append(record)
            else:
                again = self._repeated if known[round] == mark else self._contradicted
                again.setdefault(replica, []).append(round)

    @property
    def all(self) -> list[RoundRecord]:
        """All records, by round."""
        return sorted(self._records, key=lambda record: record.round)

    def problem(self, done: int = 0, until: int | None = None, replicas: int = 0) -> str:
        """What is wrong with the rounds up to `until`, by default all; empty where nothing is.

        All records of the rounds up to `done` must be there. Otherwise the last round may lack some: it may be under
        way, or a crash may have ended it. `replicas` counts the methods with a seed each, where that is known.
        """
        last = max((max(known) for known in self._rounds.values()), default=0)
        limit = max(done, last - 1) if until is None else min(until, max(done, last - 1))
        methods, seeds = dict.fromkeys(m for m, _ in self._rounds), dict.fromkeys(s for _, s in self._rounds)
        expected = [(method, seed) for method in methods for seed in seeds]
        missing = {
            replica: gaps
            for replica in expected or [("", 0)]
            if (gaps := [t for t in range(1, limit + 1) if t not in self._rounds.get(replica, ())])
        }
        contradicted = {
            replica: kept
            for replica, rounds in self._contradicted.items()
            if (kept := [t for t in rounds if until is None or t <= until])
        }
        found = [f"{text} missing" for text in _describe(missing, len(expected) or 1)]
        if found and self._broken:
            found[-1] += f" ({_describe_lines(self._broken)})"
        if limit and expected and replicas and len(expected) != replicas:
            found.append(f"there are records of {len(expected)} methods and seeds in place of {replicas}")
        found += [f"{text} recorded twice, with different numbers" for text in _describe(contradicted, len(expected))]
        if not self._rounds and self._broken and not found:
            found = [_describe_lines(self._broken)]
        return "; ".join(found)

    def notes(self) -> list[str]:
        """What was left out without losing anything: lines that are not records, and second copies."""
        found = [f"{_describe_lines(self._broken)}, and left out"] if self._broken else []
        texts = _describe(self._repeated, len(self._rounds))
        return [*found, *(f"{text} recorded twice with the same numbers, and counted once" for text in texts)]


def read(path: Path) -> Records:
    """The records of a file, none where there is no file. An incomplete last line is ignored."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return Records()
    lines = text.split(b"\n")
    if parse(lines[-1]) is None:
        lines.pop()
    return Records(lines)


def parse(line: bytes) -> RoundRecord | None:
    """The record that a line holds; None where it holds none."""
    try:
        values = json.loads(line)
        return RoundRecord.from_json(values) if _is_record(values) else None
    except (ValueError, TypeError, AttributeError):
        return None


def _is_record(values: Any) -> bool:
    """Whether JSON values have what every version records, of the right kind."""
    return (
        isinstance(values, dict)
        and all(isinstance(values.get(name), kind) for name, kind in _KINDS.items())
        and values["round"] > 0
        and all(isinstance(task, dict) for task in values["tasks"].values())
        and isinstance(values.get("mean"), int | float | None)
    )


class Scan:
    """Checks that all records are there, in order, in a file that is being appended to.

    Lines are not parsed, which would take several times as long. Where this finds a problem, `read` says which.
    """

    def __init__(self, path: Path):
        self.file = TailReader(path)
        self._begin()

    def _begin(self) -> None:
        self.last: dict[tuple[bytes, bytes], int] = {}
        self.in_order = True

    def look(self) -> None:
        """Reads what is new."""
        lines, rewritten = self.file.new_lines()
        if rewritten:
            self._begin()
        for line in lines if self.in_order else ():
            found = _START.match(line) if line.endswith(b"}") and line.isascii() else None
            if not found or int(found[1]) != self.last.get((found[2], found[3]), 0) + 1:
                self.in_order = False
                break
            self.last[found[2], found[3]] = int(found[1])

    def complete(self, done: int, replicas: int) -> bool:
        """Whether nothing is missing, doubled or broken; arguments as those of `Records.problem`."""
        rounds = self.last.values()
        limit = max(done, max(rounds, default=0) - 1)
        methods, seeds = ({replica[n] for replica in self.last} for n in (0, 1))
        everyone = len(self.last) == (replicas or len(methods) * len(seeds))
        return self.in_order and (not limit or everyone) and min(rounds, default=0) >= limit


def _describe_lines(numbers: Sequence[int]) -> str:
    """Says that lines are no records."""
    shown = ", ".join(map(str, numbers[:_MOST_NAMED])) + (" and more" if len(numbers) > _MOST_NAMED else "")
    return f"line {shown} is not a record" if len(numbers) == 1 else f"lines {shown} are not records"


def _describe(rounds: dict[_Replica, list[int]], replicas: int) -> list[str]:
    """Rounds in words with a verb; with methods and seeds, unless it is the same rounds of all of them."""
    if len(rounds) == replicas and len({tuple(each) for each in rounds.values()}) == 1:
        return [_rounds(next(iter(rounds.values())))]
    texts = [_rounds(each, f" of {method} with seed {seed}") for (method, seed), each in rounds.items()]
    if len(texts) > _MOST_NAMED:
        texts[_MOST_NAMED - 1 :] = [f"rounds of {len(texts) - _MOST_NAMED + 1} more methods and seeds are"]
    return texts


def _rounds(rounds: Sequence[int], of: str = "") -> str:
    """
    >>> _rounds([3]), _rounds([3, 4, 5, 9], of=" of full")
    ('round 3 is', 'rounds 3-5, 9 of full are')
    """
    ordered = sorted(set(rounds))
    runs = [[t for _, t in run] for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    shown = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs[:_MOST_NAMED])
    more = " and more" if len(runs) > _MOST_NAMED else ""
    return f"rounds {shown}{more}{of} are" if len(ordered) > 1 else f"round {shown}{of} is"
