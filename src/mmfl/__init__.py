"""mmfl: multi-model federated learning, many models trained at once over one shared pool of clients."""

from mmfl import data, models, partition
from mmfl.federation import Federation
from mmfl.task import Task

__version__ = "0.1.0"
