# %% [markdown]
# # A residual network with batch norm, on pictures of many cameras
#
# Twenty-four cameras take pictures of handwritten digits and of marks. Each camera has its own exposure and contrast,
# so the same network sees other numbers on each. Two residual networks are trained at the same time, the way one would
# in one place: batch norm, random crops and AdamW. The question is where the statistics of batch norm should live.
#
# Run it as a script (`python examples/cameras.py`, `--quick` for a short form) or cell by cell.

# %%
import os
import sys

import numpy as np
import torch
from torch import Tensor, nn

import mmfl
from mmfl.data.augmentation import Crop, Noise

QUICK = "--quick" in sys.argv or "MMFL_QUICK" in os.environ
ROUNDS, CAMERAS = (2, 6) if QUICK else (24, 24)

# %% [markdown]
# ## The network
#
# Blocks and names are those of torchvision's ResNet, whose `resnet18(num_classes=10)` could stand here as well: any
# `nn.Module` will do, batch norm and its buffers included.


# %%
class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """relu(x + f(x))."""
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.downsample(x))


class ResNet(nn.Module):
    """A residual network for small pictures with one channel."""

    def __init__(self, classes: int = 10, width: int = 8):
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = BasicBlock(width, width, 1)
        self.layer2 = BasicBlock(width, 2 * width, 2)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        x = self.layer2(self.layer1(torch.relu(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


# %% [markdown]
# ## Pictures of many cameras
#
# Pictures have owners, the cameras, and every camera changes them in its own way. A part of each camera's pictures is
# set aside for testing, so that each is tested on its own.


# %%
def taken_by_cameras(source: mmfl.data.Dataset, seed: int) -> mmfl.data.Dataset:
    """The pictures of a data set, dealt to cameras with an exposure and a contrast of their own."""
    rng = np.random.default_rng(seed)
    x, y = torch.cat([source.x, source.x_test]), torch.cat([source.y, source.y_test])
    camera = rng.integers(0, CAMERAS, len(x))
    exposure, contrast = rng.normal(0, 1.5, CAMERAS), rng.uniform(0.2, 3, CAMERAS)
    shape = (-1, 1, 1, 1)
    seen = exposure[camera].reshape(shape) + contrast[camera].reshape(shape) * x.numpy()
    owner = [f"camera-{number:02}" for number in camera]
    return mmfl.data.from_arrays(seen.astype(np.float32), y, owner, test_share=0.25)


digits = taken_by_cameras(mmfl.data.digits(), seed=1)
marks = taken_by_cameras(mmfl.data.images(200 if QUICK else 1800, side=8, classes=6, noise=1.0), seed=2)


# %% [markdown]
# ## Where the statistics live
#
# - `"shared"`: the server averages those of the drawn cameras, round by round;
# - `"local"` (FedBN): statistics, scales and shifts of batch norm stay with each camera, everything else is shared;
# - `"frozen"`: they stay as the network was made (or pretrained), as in fine-tuning.
#
# Everything else is the same: AdamW with a warm-up over the local steps, gradients clipped, crops and noise.


# %%
def federation(batch_norm: str) -> mmfl.Federation:
    """Both tasks, with the statistics of batch norm in one place."""
    settings = {
        "lr": 0.01,
        "lr_steps": mmfl.schedules.Cosine(warm_up=2),
        "optimiser": mmfl.optimisers.AdamW(clip_norm=1.0),
        "epochs": 2,
        "batch_size": 16,
        "augment": [Crop(padding=1), Noise(0.05)],
        "metrics": ["macro_f1"],
        "batch_norm": batch_norm,
    }
    return mmfl.Federation(
        [mmfl.Task("digits", ResNet, digits, **settings), mmfl.Task("marks", lambda: ResNet(6), marks, **settings)],
        capacity=[1, 1, 2],
        seed=0,
    )


runs = {
    where: mmfl.train(federation(where), "mmfl-lvr", rounds=ROUNDS, rate=0.4, evaluate_every=4)
    for where in (("shared", "local") if QUICK else ("shared", "local", "frozen"))
}
for where, run in runs.items():
    worst = run.frame("client_worst_tenth").dropna().iloc[-1]
    texts = [f"{task}: {run.final()[task]:.2f}, worst cameras {worst[task]:.2f}" for task in run.tasks]
    print(f"{where:7}", "  ".join(texts))

# %% [markdown]
# ## What is left afterwards
#
# A run has the mean of the statistics of all cameras, where these are local: a start for a camera that comes later.

# %%
model = runs["shared"].module("digits")
print(sum(p.numel() for p in model.parameters()), "parameters,", "running_mean" in str(model.state_dict().keys()))
