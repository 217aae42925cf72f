"""pfl-research: `FederatedAveraging` on its `SimulatedBackend`, in one process or, under torchrun, several.

It draws users without replacement from one pass over all of them to the next, in an order that we shuffle, and does not
shuffle a user's images.
"""

import os
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor
from workload import BATCH, COHORT, EPOCHS, RATE, USERS, Driver, Workload

FIRST, PROCESSES = os.environ.get("RANK", "0") == "0", int(os.environ.get("WORLD_SIZE", "1"))
driver = Driver(silent=not FIRST)
work = Workload(driver.folder)
torch.set_num_threads(max(1, torch.get_num_threads() // PROCESSES))
np.random.seed(1)  # noqa: NPY002 (what pfl draws from)


class Rounds(TrainingProcessCallback):
    """Tells the driver of every round."""

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        """Called after every round."""
        driver.round()
        if PROCESSES > 1:
            torch.distributed.barrier()  # or the others would go on while the first one waits for its turn
        return False, Metrics()


def loss(x: Tensor, y: Tensor) -> Tensor:
    """What pfl minimises."""
    return F.cross_entropy(module(x), y)


module: Any = work.model()
module.loss, module.metrics = loss, lambda *_: {}
users = np.random.default_rng(1).permutation(USERS).tolist()
data = FederatedDataset(lambda user: Dataset(work.user(user)), get_user_sampler("minimize_reuse", users))
FederatedAveraging().run(
    NNAlgorithmParams(
        central_num_iterations=driver.rounds,
        evaluation_frequency=driver.rounds,
        train_cohort_size=COHORT,
        val_cohort_size=0,
    ),
    SimulatedBackend(data, data),
    PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
    NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=EPOCHS, local_learning_rate=RATE),
    callbacks=[Rounds()],
    send_metrics_to_platform=False,
)
threads = f"{torch.get_num_threads()} threads an operation" if PROCESSES == 1 else f"{PROCESSES} processes"
driver.end(version("pfl"), threads, work.accuracy(module.state_dict()))
