"""Flower: its simulation with Ray, a ClientApp and FedAvg of the message API, two clients at once.

The driver runs this in a network namespace of its own, because Ray listens on every interface.
"""

import os
from importlib.metadata import version

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from workload import BATCH, COHORT, EPOCHS, RATE, USERS, Driver, shared

driver = Driver()
folder, rounds = driver.folder, driver.rounds
cores = torch.get_num_threads()
client, server = ClientApp(), ServerApp()
final = []


@client.train()
def train(message: Message, context: Context) -> Message:
    """A user's local training."""
    torch.set_num_threads(1)
    work = shared(folder)
    module = work.model()
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
    x, y = work.user(int(context.node_config["partition-id"]))
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(y)).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(module(x[batch]), y[batch]).backward()
            optimiser.step()
    answer = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(answer), reply_to=message)


def after(round: int, arrays: ArrayRecord) -> None:
    """Tells the driver of every round; Flower calls this before the first as well."""
    if round > 0:
        driver.round()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """FedAvg on a twentieth of the users a round."""
    strategy = FedAvg(fraction_train=COHORT / USERS, fraction_evaluate=0.0)
    initial = ArrayRecord(shared(folder).model().state_dict())
    final.append(strategy.start(grid=grid, initial_arrays=initial, num_rounds=rounds, evaluate_fn=after).arrays)


resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0}, "init_args": {"num_cpus": cores}}
run_simulation(server, client, USERS, backend_config=resources)
accuracy = shared(folder).accuracy(final[0].to_torch_state_dict())
driver.end(version("flwr"), f"{cores} clients at once, one thread each", accuracy)
os._exit(0)
