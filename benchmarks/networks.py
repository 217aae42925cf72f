"""Local training of many clients with transformers, GRUs and residual networks: mmfl's engine against the plain loop.

The plain loop trains one client after another with torch's own layers, on one module into which it loads the global
weights (to build a ResNet-18 takes longer than to train it). Both train the same clients on the same data for
as many steps and take turns; dropout is on, and batch norm tracks running statistics that clients share.

    python benchmarks/networks.py [--clients 256] [--only transformer,gru,resnet] [--repeats 5] [--device cpu|cuda]
"""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

import mmfl
from engine import describe_machine, measure

VOCABULARY, LENGTH, CLASSES = 80, 64, 10


class TransformerEncoder(nn.Module):
    """Tokens, a learned place for each, two layers with dropout 0.1, and the class of their mean."""

    def __init__(self, width: int = 64, heads: int = 4):
        super().__init__()
        self.embedding, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.encoder(self.embedding(x) + self.place.weight).mean(1))


class GRU(nn.Module):
    """Tokens, two layers with dropout 0.1 between them, and the class of the last state."""

    def __init__(self, width: int = 32, hidden: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.GRU(width, hidden, num_layers=2, dropout=0.1, batch_first=True)
        self.output = nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.layers(self.embedding(x))[0][:, -1])


class Block(nn.Module):
    """Two convolutions with batch norm, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.around = around if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.around(x))


def resnet18() -> nn.Module:
    """He et al. 2015 with 18 layers and batch norm, beginning as usual for images of 32 x 32: 11 million parameters."""
    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    begin = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()
    return nn.Sequential(*begin, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def tokens(rows: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, VOCABULARY, (rows, LENGTH))


def pictures(rows: int, rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(rows, 3, 32, 32)).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A network, its examples, and how many clients have how many of them, by kind of device."""

    name: str
    model: Callable[[], nn.Module]
    examples: Callable[[int, np.random.Generator], np.ndarray]
    batch: int
    clients: dict[str, int]
    each: dict[str, int]
    target: dict[str, str]

    def federation(self, clients: int, device: str) -> mmfl.Federation:
        each, rng = self.each[device], np.random.default_rng(0)
        x, y = self.examples(clients * each, rng), rng.integers(0, CLASSES, clients * each)
        data = mmfl.data.from_arrays(x, y, np.repeat(np.arange(clients), each), test=(x[:4], y[:4]))
        return mmfl.Federation([mmfl.Task("task", self.model, data, lr=0.05, batch_size=self.batch, epochs=1)])


SEQUENCES = {"cpu": 32, "cuda": 32}
FEW, MANY = {"cpu": 8, "cuda": 256}, {"cpu": "1x", "cuda": "10x"}
CASES = {
    "transformer": [
        Case("transformer encoder, batch 8", TransformerEncoder, tokens, 8, FEW, SEQUENCES, MANY),
        Case("transformer encoder, batch 32", TransformerEncoder, tokens, 32, FEW, SEQUENCES, MANY),
    ],
    "gru": [
        Case("GRU, batch 8", GRU, tokens, 8, FEW, SEQUENCES, MANY),
        Case("GRU, batch 32", GRU, tokens, 32, FEW, SEQUENCES, MANY),
    ],
    "resnet": [
        Case(
            "ResNet-18, batch 16",
            resnet18,
            pictures,
            16,
            {"cpu": 4, "cuda": 256},
            {"cpu": 16, "cuda": 64},
            {"cpu": "", "cuda": "5x"},
        )
    ],
}


def compare(case: Case, clients: int | None, device: torch.device, repeats: int) -> str:
    clients = clients or case.clients[device.type]
    timing = measure(case.federation(clients, device.type), device, repeats, fresh=False)
    return (
        f"| {case.name} | {clients} x {case.each[device.type]} | {timing} | {case.target[device.type]} | {timing.way} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=int)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    print(describe_machine(device))
    print("| network | clients x examples | plain loop ms | mmfl ms | ratio (range) | to reach | way |")
    print("|---|---|---|---|---|---|---|")
    for name in options.only.split(","):
        for case in CASES[name]:
            print(compare(case, options.clients, device, options.repeats), flush=True)


if __name__ == "__main__":
    main()
