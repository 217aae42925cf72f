"""mmfl: one task, random clients, their mean (`multi-fedavg` with one task is FedAvg)."""

import os
import sys

import torch
from workload import BATCH, COHORT, EPOCHS, RATE, USERS, Driver, Workload

import mmfl
from mmfl.runs.listener import Listener

driver = Driver()
work = Workload(driver.folder)


class Rounds(Listener):
    """Tells the driver of every round."""

    def round(self, records: object) -> None:
        """Called after every round."""
        driver.round()


device = os.environ.get("MMFL_DEVICE", "cpu")
precision = sys.argv[3] if len(sys.argv) > 3 else "float32"
rows = work.rows.flatten()
owner = torch.arange(USERS).repeat_interleave(work.rows.shape[1])
data = mmfl.data.from_arrays(work.x[rows], work.y[rows], owner, test=(work.x_test, work.y_test), name="cifar10")
task = mmfl.Task("cifar10", work.model, data, lr=RATE, epochs=EPOCHS, batch_size=BATCH)
run = mmfl.train(
    mmfl.Federation([task]),
    "multi-fedavg",
    rounds=driver.rounds,
    rate=COHORT / USERS,
    evaluate_every=driver.rounds,
    device=device,
    precision=precision,
    listeners=[Rounds()],
)
threads = f"{torch.get_num_threads()} users at once, one thread each" if device == "cpu" else "a cohort"
driver.end(mmfl.__version__, f"{threads}, {precision}", work.accuracy(run.module("cifar10").state_dict()))
