"""A deployment's module: the tasks, which server and nodes share, and what data a client has.

Try it on this machine: mmfl deploy examples/deployed.py --local 4 --rounds 10 --method mmfl-lvr --rate 0.5
"""

import mmfl

CLIENTS = 4


def tasks() -> list[mmfl.Task]:
    """Two models of handwritten digits. The server tests on `data`; nodes train on their own."""
    digits = mmfl.data.digits()
    return [
        mmfl.Task("linear", mmfl.models.LogisticRegression, digits, lr=0.3, epochs=5),
        mmfl.Task("hidden", mmfl.models.Perceptron, digits, lr=0.3, epochs=5),
    ]


def data(task: str, client: int):
    """The examples (x, y) of a client; a real one would read them from its disk. None if it lacks the task."""
    digits = mmfl.data.digits()
    mine = slice(client, None, CLIENTS)
    return digits.x[mine], digits.y[mine]
