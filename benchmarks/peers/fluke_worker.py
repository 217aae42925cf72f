"""fluke: its FedAVG with our users, nothing evaluated on the way."""

from importlib.metadata import version
from typing import Any

import torch

# fluke imports torchvision, whose wheels expect a CUDA build of torch: beside a CPU build its operators, which nothing
# here uses, are missing. Declaring those that it describes on import lets that pass.
if torch.version.cuda is None:
    for name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.utils import FederationObserver
from workload import BATCH, COHORT, EPOCHS, RATE, USERS, Driver, Workload

driver = Driver()
work = Workload(driver.folder)


class Rounds(FederationObserver):
    """Tells the driver of every round."""

    def end_round(self, round: int) -> None:
        """Called after every round."""
        driver.round()


environment = FlukeENV()
environment.set_seed(1)
environment.set_device("cpu")
environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
loaders = [FastDataLoader(*work.user(n), num_labels=10, batch_size=BATCH, shuffle=True) for n in range(USERS)]
users = DummyDataContainer(loaders, [None] * USERS, None, 10)
client: dict[str, Any] = {"batch_size": BATCH, "local_epochs": EPOCHS, "loss": "CrossEntropyLoss", "persistency": False}
client["optimizer"] = {"name": "SGD", "lr": RATE}
client["scheduler"] = {"name": "StepLR", "step_size": 1, "gamma": 1}
settings = DDict(client=client, server={"weighted": True}, model=work.model())
federation = FedAVG(USERS, DataSplitter(users), settings)
federation.set_callbacks(Rounds())
federation.run(driver.rounds, COHORT / USERS)
threads = f"{torch.get_num_threads()} threads an operation"
driver.end(version("fluke-fl"), threads, work.accuracy(federation.server.model.state_dict()))
