"""How processes find those of their own attempt, in a store in which earlier attempts left their words."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import torch.distributed as dist

from mmfl.updates.meeting import agree_on_name


def meet(store: dist.Store, ranks: list[int], size: int) -> list[str]:
    """The names that processes agree on, which come in this order."""
    with ThreadPoolExecutor(size) as threads:
        return [each.result(60) for each in [threads.submit(agree_on_name, store, rank, size) for rank in ranks]]


def test_all_processes_of_an_attempt_agree_and_no_two_attempts_do():
    store = dist.HashStore()
    names = [meet(store, ranks, len(ranks)) for ranks in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 0], [0], [2, 0, 1])]
    assert [len(set(each)) for each in names] == [1] * 5
    assert len({each[0] for each in names}) == 5


class Watched(dist.HashStore):
    """A store that tells when an answer to a name was written."""

    def __init__(self):
        super().__init__()
        self.answered = Event()

    def set(self, key, value):
        super().set(key, value)
        if "answer" in key:
            self.answered.set()


def test_who_answers_a_name_of_an_earlier_attempt_waits_for_the_one_of_its_own():
    store = Watched()
    (earlier, _) = meet(store, [0, 1], 2)
    store.answered.clear()
    with ThreadPoolExecutor(2) as threads:
        second = threads.submit(agree_on_name, store, 1, 2)
        assert store.answered.wait(60)
        assert not second.done()
        first = threads.submit(agree_on_name, store, 0, 2)
        assert first.result(60) == second.result(60) != earlier
