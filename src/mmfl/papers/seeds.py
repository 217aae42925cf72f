"""More seeds than were planned for a table or figure: which were added, and adding them until its claims are decided.

Seeds are added in blocks to all parts of a page. A block is a part of its own, stored in the folder of the part that it
adds to, so that what was broken off goes on with the parts that are missing. A look at the claims follows every block.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from mmfl.errors import UserError
from mmfl.papers.families import judge, judge_looks
from mmfl.papers.reproduction import OWN, Claim, Findings, Part, Reproduction, Verdict
from mmfl.papers.store import Results

BLOCK = 5


def first_parts(parts: Sequence[Part]) -> list[Part]:
    """The parts that train with the first seed: where a method's seeds are divided over parts, the first of them."""
    first = min(seed for part in parts for seed in part.seeds)
    return [part for part in parts if first in part.seeds]


def blocks(parts: Sequence[Part], results: Results, quick: bool) -> list[range]:
    """The seeds that were added to all parts of a page."""
    base = first_parts(parts)
    used = {seed for part in parts for seed in part.seeds}
    found = []
    for seeds in results.seeds_added(base[0]):
        whole = all(results.done(part.with_seeds(seeds), quick) for part in base)
        if whole and used.isdisjoint(seeds):
            found.append(seeds)
            used.update(seeds)
    return found


def parts_adding(parts: Sequence[Part], seeds: Sequence[range]) -> list[Part]:
    """The parts that add these blocks of seeds."""
    return [part.with_seeds(block) for block in seeds for part in first_parts(parts)]


def parts_with_added(reproduction: Reproduction, results: Results, quick: bool) -> list[Part]:
    """The planned parts, and those that added seeds."""
    parts = list(reproduction.parts(quick))
    return parts + parts_adding(parts, blocks(parts, results, quick))


def findings(reproduction: Reproduction, results: Results, quick: bool, adding: bool = False) -> Findings:
    """What all runs of a table or figure show, its claims judged together; with `adding`, more seeds may follow."""
    parts = list(reproduction.parts(quick))
    added = blocks(parts, results, quick)
    looks = [
        reproduction.find(results.frames(parts + parts_adding(parts, added[:count]))) for count in range(len(added) + 1)
    ]
    claims = judge_looks([look.claims for look in looks]) if added or adding else judge(looks[0].claims)
    return replace(looks[-1], claims=claims)


def until_decided(
    reproduction: Reproduction,
    results: Results,
    quick: bool,
    most: int,
    train: Callable[[Sequence[Part]], None],
    say: Callable[[str], None],
) -> None:
    """Adds seeds, a block at a time, until all claims of the paper are decided or there are `most` seeds."""
    parts = reproduction.parts(quick)
    planned = len({seed for part in parts for seed in part.seeds})
    if planned > most:
        raise UserError(f"reproduce: --max-seeds is {most}, but {reproduction.id} has {planned} seeds to begin with.")
    train(parts)
    while True:
        added = blocks(parts, results, quick)
        seeds = planned + sum(map(len, added))
        claims = [each for each in findings(reproduction, results, quick, adding=True).claims if _needs_seeds(each)]
        if not claims:
            raise UserError(f"reproduce: {reproduction.id} has no claim that more seeds could decide.")
        count = sum(claim.verdict is Verdict.OPEN for claim in claims)
        say(f"{reproduction.id}: {seeds} seeds, {count} of {len(claims)} claims not decided")
        if not count or seeds >= most:
            return
        train(parts_adding(parts, [_next_block(parts, added, min(BLOCK, most - seeds))]))


def _needs_seeds(claim: Claim) -> bool:
    return bool(claim.outcomes) and claim.paper != OWN


def _next_block(parts: Sequence[Part], added: Sequence[range], size: int) -> range:
    used = [part.seeds for part in parts] + list(added)
    start = 1 + max(seed for seeds in used for seed in seeds)
    return range(start, start + size)
