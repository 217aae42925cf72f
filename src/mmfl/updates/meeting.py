"""Meeting: how processes that `torchrun` starts, or starts again, become a group.

`torchrun` keeps one store for all attempts of a job, and torch looks there for the addresses of a group's processes.
After a restart it would find those of processes that are gone, so each attempt has a part of the store to itself.
"""

import secrets
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

_PAUSE = 0.05  # seconds between two looks into the store


def start_group(backend: str, patience: timedelta) -> None:
    """Makes this process and the others of its attempt a `torch.distributed` group."""
    store, rank, size = next(rendezvous("env://", timeout=patience))
    own = PrefixStore(agree_on_name(store, rank, size), store)
    dist.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=patience)


def agree_on_name(store: Store, rank: int, size: int) -> str:
    """A name for this attempt that all of its processes know and no earlier one had.

    The first process proposes a name. Each of the others answers with that name and a word of its own, until the first
    one confirms that answer: only processes that are there can know the words of this attempt.
    """
    word = secrets.token_hex(8)
    if rank == 0:
        store.set("mmfl/name", word)
        answers = [_answer(store, each, word) for each in range(1, size)]
        store.set("mmfl/confirmed", " ".join(answers))
        return word
    while True:
        name = store.get("mmfl/name").decode()
        answer = f"{name}/{word}"
        store.set(f"mmfl/answer {rank}", answer)
        if store.check(["mmfl/confirmed"]) and answer in store.get("mmfl/confirmed").decode().split():
            return name
        time.sleep(_PAUSE)


def _answer(store: Store, rank: int, name: str) -> str:
    """What another process answers to this name, once it does."""
    while not (answer := store.get(f"mmfl/answer {rank}").decode()).startswith(name):
        time.sleep(_PAUSE)
    return answer
