"""Local training of many clients' character LSTM: mmfl's cohorts against the plain PyTorch loop, side by side.

The plain loop trains one client after another with torch's own LSTM: a single call over all steps of a window, cuDNN
on a GPU. No such kernel takes the weights of many clients at once: a cohort goes step by step, but with everyone.
Both train the same clients on the same windows for as many steps; the engine's time includes collecting updates.

    python benchmarks/lstm.py [--clients 128] [--repeats 5] [--device cpu|cuda]
"""

import argparse
import platform
import statistics
from functools import partial

import numpy as np
import torch

import mmfl
from engine import plain_loop, seconds
from mmfl.engine import Simulation, Training
from mmfl.federation.objectives import next_token
from mmfl.local import SGD

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
    federation = federation_of(model, clients, each)
    engine = Simulation(device, "vectorised")
    training = Training(federation, 0, engine.initial(federation, 0, 0), np.arange(clients), 1, 0, SGD())
    x, y = (tensor.to(device) for tensor in (federation.tasks[0].data.x, federation.tasks[0].data.y))
    # The plain loop is linear in clients: of a large cohort, time a part.
    part = min(clients, 32)
    plain, ours = partial(plain_loop, federation, range(part), device, x, y), partial(engine.train, [training])
    seconds(plain, device)
    seconds(ours, device)
    pairs = [(seconds(plain, device) * clients / part, seconds(ours, device)) for _ in range(repeats)]
    ratios = [a / b for a, b in pairs]
    plain_ms, ours_ms = (1000 * statistics.median(column) for column in zip(*pairs, strict=True))
    return (
        f"| {name} | {clients} x {each} | {EPOCHS} | {plain_ms:.1f} | {ours_ms:.1f} | "
        f"{statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f}) |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    what = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{what}; Python {platform.python_version()}, torch {torch.__version__}, mmfl {mmfl.__version__}")
    print(f"| two layers, windows of {WINDOW} | clients x windows | steps | plain loop ms | mmfl ms | ratio (range) |")
    print("|---|---|---|---|---|---|")
    for case in CASES[device.type]:
        print(compare(*case, options.clients or CLIENTS[device.type], device, options.repeats), flush=True)


if __name__ == "__main__":
    main()
