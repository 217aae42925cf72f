"""The plain PyTorch loop: one module, the global weights loaded for each user, SGD, and a mean."""

import os

import torch
import torch.nn.functional as F
from workload import BATCH, COHORT, EPOCHS, RATE, USERS, Driver, Workload

driver = Driver()
work = Workload(driver.folder)
device = torch.device(os.environ.get("MMFL_DEVICE", "cpu"))
work.x, work.y, work.rows = (tensor.to(device) for tensor in (work.x, work.y, work.rows))
module = work.model().to(device)
weights = {name: value.clone() for name, value in module.state_dict().items()}
torch.manual_seed(1)
for _ in range(driver.rounds):
    total = {name: torch.zeros_like(value) for name, value in weights.items()}
    for user in torch.randperm(USERS)[:COHORT].tolist():
        module.load_state_dict(weights)
        optimiser = torch.optim.SGD(module.parameters(), lr=RATE)
        x, y = work.user(user)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(y), device=device).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(module(x[batch]), y[batch]).backward()
                optimiser.step()
        for name, value in module.state_dict().items():
            total[name] += value
    weights = {name: value / COHORT for name, value in total.items()}
    if device.type == "cuda":
        torch.cuda.synchronize()
    driver.round()
cores = f"{torch.get_num_threads()} threads an operation" if device.type == "cpu" else torch.cuda.get_device_name()
driver.end(torch.__version__, cores, work.accuracy({name: value.cpu() for name, value in weights.items()}))
