"""A small run, and a listener that remembers what it hears and does something on the way."""

import mmfl
from conftest import toy_task


class Heard(mmfl.Listener):
    """Remembers what it hears, and acts after a round."""

    def __init__(self, at=0, act=lambda info: None):
        self.at, self.act, self.rounds = at, act, []

    def begin(self, info):
        self.info = info

    def round(self, records):
        self.rounds.append(records[0].round)
        if records[0].round == self.at:
            self.act(self.info)

    def end(self, end):
        self.ended = end


def train(path, *listeners, **options) -> mmfl.Run:
    """One task and four clients; by default six rounds, with a checkpoint after every second one."""
    settings = {"rounds": 6, "rate": 0.5, "directory": path, "checkpoint_every": 2, "listeners": listeners}
    return mmfl.train(mmfl.Federation([toy_task()], clients=4), "random", **{**settings, **options})
