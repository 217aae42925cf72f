"""Local training of many clients' character LSTM: mmfl's cohorts against the plain PyTorch loop, side by side.

The plain loop trains one client after another with torch's own LSTM: a single call over all steps of a window, cuDNN
on a GPU. No such kernel takes the weights of many clients at once: a cohort goes step by step, but with everyone.
Both train the same clients on the same windows for as many steps; the engine's time includes collecting updates.

    python benchmarks/lstm.py [--clients 128] [--repeats 5] [--device cpu|cuda]
"""

import argparse
from functools import partial

import numpy as np
import torch

import mmfl
from engine import describe_machine, measure
from mmfl.federation.objectives import next_token

WINDOW, VOCABULARY, EPOCHS = 80, 80, 5
PAPERS = partial(mmfl.models.CharacterLSTM, VOCABULARY, embedding=128, hidden=256)
SMALLER = partial(mmfl.models.CharacterLSTM, VOCABULARY, embedding=32, hidden=64)

# name, model, windows each, all of them in one batch
CASES = {
    "cpu": [("embedding 32, hidden 64", SMALLER, 4), ("embedding 32, hidden 64", SMALLER, 16)],
    "cuda": [("embedding 128, hidden 256", PAPERS, 16), ("embedding 128, hidden 256", PAPERS, 64)],
}
CLIENTS = {"cpu": 8, "cuda": 128}


def federation_of(model: partial, clients: int, each: int) -> mmfl.Federation:
    text = np.random.default_rng(0).integers(0, VOCABULARY, (clients * each, WINDOW + 1))
    x, y, owner = text[:, :-1], text[:, 1:], np.repeat(np.arange(clients), each)
    data = mmfl.data.from_arrays(x, y, owner, test=(x[:4], y[:4]))
    return mmfl.Federation([mmfl.Task("text", model, data, lr=0.5, epochs=EPOCHS, loss=next_token)])


def compare(name: str, model: partial, each: int, clients: int, device: torch.device, repeats: int) -> str:
    timing = measure(federation_of(model, clients, each), device, repeats, mode="vectorised")
    return f"| {name} | {clients} x {each} | {EPOCHS} | {timing} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    print(describe_machine(device))
    print(f"| two layers, windows of {WINDOW} | clients x windows | steps | plain loop ms | mmfl ms | ratio (range) |")
    print("|---|---|---|---|---|---|")
    for case in CASES[device.type]:
        print(compare(*case, options.clients or CLIENTS[device.type], device, options.repeats), flush=True)


if __name__ == "__main__":
    main()
