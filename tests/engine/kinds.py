"""Modules of every kind that the engines must train alike, each as a small task."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from small import CLASSES, IMAGES, TOKENS, VECTORS, Model, linear, normal, numbers, task
from torch import Tensor, nn

from mmfl import models
from mmfl.federation.objectives import (
    accuracy,
    binary_accuracy,
    binary_cross_entropy,
    cross_entropy,
    next_token,
    per_example,
    squared_error,
    unweighted,
    value,
    weighted,
)
from mmfl.federation.task import Task


def images(*layers: nn.Module, features: int) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 3))


def lstm(batch_first: bool = True, dropout_after: float = 0.0, **options: Any) -> nn.Module:
    """An LSTM of which output, last state and last cell are all used."""

    def compute(self: Any, x: Tensor) -> Tensor:
        states, (h, c) = self.lstm(self.embedding(x if batch_first else x.T))
        states = F.dropout(states, dropout_after, self.training)
        return self.output(torch.cat([states[:, 1] if batch_first else states[1], h[0], c[-1]], -1))

    features = 12 if options.get("bidirectional") else 9
    layer = nn.LSTM(4, 3, batch_first=batch_first, **options)
    return Model(compute, embedding=nn.Embedding(5, 4), lstm=layer, output=nn.Linear(features, 3))


def recurrent(kind: type[nn.RNNBase], time_first: bool = False, **options: Any) -> nn.Module:
    """A recurrent layer of which output and last state are used."""

    def compute(self: Any, x: Tensor) -> Tensor:
        states, h = self.layer(self.embedding(x.T if time_first else x))
        return self.output(torch.cat([states[1] if time_first else states[:, 1], h[0]], -1))

    features = 9 if options.get("bidirectional") else 6
    layer = kind(4, 3, batch_first=not time_first, **options)
    return Model(compute, embedding=nn.Embedding(5, 4), layer=layer, output=nn.Linear(features, 3))


def attention(**options: Any) -> nn.Module:
    def compute(self: Any, x: Tensor) -> Tensor:
        return self.output(self.encoder(self.embedding(x)).mean(1))

    encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, **options)
    return Model(compute, embedding=nn.Embedding(5, 4), encoder=encoder, output=nn.Linear(4, 3))


def transformer(batch_first: bool = True, norm_first: bool = False, causal: bool = False) -> nn.Module:
    """Two layers with dropout, from tokens of which token 0 is padding."""

    def compute(self: Any, x: Tensor) -> Tensor:
        mask = torch.ones(5, 5, dtype=torch.bool, device=x.device).triu(1) if causal else None
        embedded = self.embedding(x if batch_first else x.T)
        padding = (x == 0) & (torch.arange(5, device=x.device) > 0)
        return self.output(self.encoder(embedded, mask, padding).mean(1 if batch_first else 0))

    layer = nn.TransformerEncoderLayer(4, 2, 8, 0.1, batch_first=batch_first, norm_first=norm_first)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Model(compute, embedding=nn.Embedding(5, 4), encoder=encoder, output=nn.Linear(4, 3))


def multi_head(batch_first: bool = True, need_weights: bool = False, **options: Any) -> nn.Module:
    """Attention with dropout, by its module; the first output is used, and the weights if there are any."""

    def compute(self: Any, x: Tensor) -> Tensor:
        embedded = self.embedding(x if batch_first else x.T)
        outputs, weights = self.attention(embedded, embedded, embedded, need_weights=need_weights)
        outputs = outputs.mean(1 if batch_first else 0)
        return self.output(outputs if weights is None else torch.cat([outputs[:, 1:], weights[:, :1, 1]], 1))

    layer = nn.MultiheadAttention(4, 2, 0.3, batch_first=batch_first, **options)
    return Model(compute, embedding=nn.Embedding(5, 4), attention=layer, output=nn.Linear(4, 3))


def decoder(self: Any, x: Tensor) -> Tensor:
    """A decoder of a few queries that all clients train, over tokens."""
    return self.output(self.decoder(self.queries.expand(len(x), -1, -1), self.embedding(x)).mean(1))


def queried() -> nn.Module:
    """A linear layer of a parameter, which comes before the layer's weight."""

    def compute(self: Any, x: Tensor) -> Tensor:
        return self.output(x * self.hidden(self.query).tanh())

    return apply(compute, query=nn.Parameter(normal(1, 4, seed=12)), hidden=nn.Linear(4, 6))


def decoding() -> nn.Module:
    layer = nn.TransformerDecoderLayer(4, 2, 8, 0.2, batch_first=True)
    parts = {"queries": nn.Parameter(normal(2, 4, seed=11)), "embedding": nn.Embedding(5, 4), "decoder": layer}
    return Model(decoder, **parts, output=nn.Linear(4, 3))


def dot_product(groups: int = 1, seen: Callable[[Tensor], Tensor | None] = lambda x: None, **options: Any) -> nn.Module:
    """Attention by its function, with keys and values that heads share in groups, and a mask that depends on tokens."""

    def compute(self: Any, x: Tensor) -> Tensor:
        query = self.query(self.embedding(x)).unflatten(-1, (4, 2)).transpose(1, 2)
        shared = self.shared(self.embedding(x)).unflatten(-1, (4 // groups, 2)).transpose(1, 2)
        p = options.get("dropout_p", 0.0) if self.training else 0.0
        chosen = {**options, "dropout_p": p, "enable_gqa": groups > 1}
        outputs = F.scaled_dot_product_attention(query, shared, shared, seen(x), **chosen)
        return self.output(outputs.transpose(1, 2).flatten(2).mean(1))

    parts = {"query": nn.Linear(4, 8), "shared": nn.Linear(4, 8 // groups), "output": nn.Linear(8, 3)}
    return Model(compute, embedding=nn.Embedding(5, 4), **parts)


def no_padding(x: Tensor) -> Tensor:
    """Which pairs of tokens may look at each other: token 0 is padding. A whole text may be."""
    return (x != 0)[:, None, None, :] & (x >= 0)[:, None, :, None]


def biased(x: Tensor) -> Tensor:
    """Tokens look more at those near them."""
    return -(torch.arange(5, device=x.device)[:, None] - torch.arange(5, device=x.device)).abs().float()


def embedding(**options: Any) -> nn.Module:
    parts = {"embedding": nn.Embedding(5, 4, **options), "output": nn.Linear(4, 3)}
    return Model(lambda self, x: self.output(self.embedding(x).mean(1)), **parts)


def apply(compute: Callable[..., Tensor], inputs: int = 6, **parts: nn.Module | nn.Parameter) -> nn.Module:
    """A function of the module and its inputs, which may use a linear layer `output` and other parts."""
    return Model(compute, **parts, output=nn.Linear(inputs, 3))


def frozen(*names: str) -> nn.Module:
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    for name in names:
        module.get_parameter(name).requires_grad_(False)
    return module


def tied() -> nn.Module:
    """A weight that is an embedding, a linear layer and another linear layer."""
    parts = {"embedding": nn.Embedding(5, 5), "output": nn.Linear(5, 5), "again": nn.Linear(5, 5, bias=False)}
    parts["output"].weight = parts["again"].weight = parts["embedding"].weight
    return Model(lambda self, x: self.again(F.relu(self.output(self.embedding(x)))).mean(1), **parts)


def half_unseen(self: Any, x: Tensor) -> Tensor:
    """One layer runs without a gradient, the output of another is thrown away."""
    with torch.no_grad():
        seen = self.fixed(x)
    self.unused(seen)
    return self.output(seen)


def part_of_a_weight(self: Any, x: Tensor) -> Tensor:
    return F.linear(x[:, :3], self.weight[:3]) + F.linear(x, self.weight[:3].repeat(1, 2))


def penalised(self: Any, x: Tensor) -> Tensor:
    """Outputs that depend on `parameters()`, as with a penalty on the weights."""
    return self.output(x) * (1 + sum(p.square().sum() for p in self.parameters()))


def buffered() -> nn.Module:
    module = apply(lambda self, x: self.output(x * self.scale + self.shift))
    module.register_buffer("scale", torch.linspace(0.5, 2, 6))
    module.register_buffer("shift", torch.ones(6), persistent=False)
    return module


def listed() -> nn.Module:
    parts = {"matrices": nn.ParameterList([torch.ones(6, 4), torch.eye(4, 3)])}
    return Model(lambda self, x: torch.tanh(x @ self.matrices[0]) @ self.matrices[1], **parts)


def functional_norm(self: Any, x: Tensor) -> Tensor:
    return self.output(F.batch_norm(self.conv(x), None, None, training=True).flatten(1))


def tracking() -> nn.Module:
    return images(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.BatchNorm2d(3, affine=False), features=108)


def masked_attention() -> nn.Module:
    """Next tokens by a causal transformer whose padding is masked."""

    def compute(self: Any, ids: Tensor, mask: Tensor) -> Tensor:
        causal = torch.ones(5, 5, dtype=torch.bool, device=ids.device).triu(1)
        return self.output(self.encoder(self.embedding(ids), causal, ~mask))

    encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0)
    return Model(compute, embedding=nn.Embedding(5, 4), encoder=encoder, output=nn.Linear(4, 5))


LENGTHS = numbers(5, 100, seed=5) + 1  # of texts that are padded to 5 tokens
MASK = torch.arange(5) < LENGTHS[:, None]


def two_heads() -> nn.Module:
    """Two inputs, and outputs by name."""

    def compute(self: Any, left: Tensor, right: Tensor) -> dict[str, Any]:
        both = torch.cat([left, right], 1)
        return {"kind": self.kind(both), "place": (self.place(both), right)}

    return Model(compute, kind=nn.Linear(8, 3), place=nn.Linear(8, 1))


def loss_of_two_heads(outputs: dict[str, Any], targets: dict[str, Tensor]) -> Tensor:
    place = per_example(squared_error(outputs["place"][0], targets["place"]))
    return cross_entropy(outputs["kind"], targets["kind"]) + place


def accuracy_of_two_heads(outputs: dict[str, Any], targets: dict[str, Tensor]) -> Tensor:
    return accuracy(outputs["kind"], targets["kind"])


PICTURES = normal(100, 2, 18, 18)


def residual(norm: str) -> nn.Module:
    return models.PreActResNet18(3, width=4, channels=2, norm=norm)


def faces(norm: str) -> nn.Module:
    return models.CelebACNN(18, channels=2, width=4, classes=3, norm=norm)


def adapted(base: Callable[[], nn.Module], **options: Any) -> Callable[[], nn.Module]:
    """Models with adapters of rank 2 on one base."""
    return partial(models.lora, task(base).build(), 2, **options)


ADAPTED_IMAGES = adapted(lambda: models.SmallCNN(8, 2, (3, 4), 5, 3, padding=1), layers=["second", "output"])
ADAPTED_TOKENS = adapted(lambda: embedding(padding_idx=0), layers=["embedding", "output"])


TRANSFORMERS: dict[str, dict[str, bool]] = {
    "": {},
    ", causal": {"causal": True},
    ", norm first": {"norm_first": True},
    ", norm first, causal": {"norm_first": True, "causal": True},
    ", time first": {"batch_first": False},
    ", time first, norm first, causal": {"batch_first": False, "norm_first": True, "causal": True},
}
KINDS: dict[str, Task] = {
    "logistic regression": task(lambda: models.LogisticRegression(6, 3)),
    "perceptron": task(lambda: models.Perceptron(6, 5, 3)),
    "penalty on its parameters": task(lambda: apply(penalised)),
    "small cnn": task(lambda: models.SmallCNN(8, 2, (3, 4), 5, 3, padding=1), IMAGES),
    "larger cnn": task(lambda: models.LargerCNN(10, 2, (3, 4), 5, 3), normal(100, 2, 10, 10)),
    "celeba cnn, batch norm": task(lambda: faces("batch"), PICTURES, lr=0.05),
    "celeba cnn, group norm": task(lambda: faces("group"), PICTURES),
    "residual network, batch norm": task(lambda: residual("batch"), PICTURES, lr=0.02, epochs=1),
    "residual network, group norm": task(lambda: residual("group"), PICTURES, epochs=1),
    "strided convolution": task(
        lambda: images(nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2)), features=132), IMAGES
    ),
    "dilated convolution": task(
        lambda: images(nn.Conv2d(2, 3, 3, dilation=2, padding="same"), nn.Tanh(), features=192), IMAGES
    ),
    "grouped convolution": task(
        lambda: images(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3, groups=2, bias=False), features=64), IMAGES
    ),
    "reflected convolution": task(
        lambda: images(nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), features=192), IMAGES
    ),
    "transposed convolution": task(lambda: images(nn.ConvTranspose2d(2, 2, 2), nn.MaxPool2d(3), features=18), IMAGES),
    "convolution in time": task(lambda: images(nn.Conv1d(8, 4, 3), features=24), IMAGES[:, 0]),
    "dropout": task(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(), nn.Linear(8, 3), nn.Dropout(0.1))),
    "channel dropout": task(lambda: images(nn.Conv2d(2, 4, 3), nn.Dropout2d(0.4), features=144), IMAGES, lr=0.1),
    "channel dropout in time": task(lambda: images(nn.Conv1d(8, 4, 3), nn.Dropout1d(0.4), features=24), IMAGES[:, 0]),
    "channel dropout in space": task(lambda: images(nn.Dropout3d(0.4), features=128), IMAGES[:, :, None]),
    "dropout in place": task(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(inplace=True), nn.Linear(8, 3))),
    "alpha dropout": task(lambda: nn.Sequential(nn.Linear(6, 8), nn.SELU(), nn.AlphaDropout(0.2), nn.Linear(8, 3))),
    "channel alpha dropout": task(
        lambda: images(nn.Conv2d(2, 4, 3), nn.SELU(), nn.FeatureAlphaDropout(0.2), features=144), IMAGES, lr=0.05
    ),
    "lstm": task(lstm, TOKENS),
    "lstm, time first": task(lambda: lstm(batch_first=False), TOKENS),
    "lstm without bias": task(lambda: lstm(bias=False), TOKENS),
    "lstm, two layers": task(lambda: lstm(num_layers=2), TOKENS),
    "lstm, both ways": task(lambda: lstm(bidirectional=True), TOKENS),
    "lstm, inner dropout": task(lambda: lstm(num_layers=2, bidirectional=True, dropout=0.4), TOKENS),
    "lstm, inner dropout, time first": task(lambda: lstm(False, num_layers=2, dropout=0.4), TOKENS),
    "lstm, time first, dropout after": task(lambda: lstm(False, dropout_after=0.4), TOKENS),
    "gru": task(lambda: recurrent(nn.GRU), TOKENS),
    "gru without bias, both ways": task(lambda: recurrent(nn.GRU, bias=False, bidirectional=True), TOKENS),
    "gru, two layers, inner dropout": task(lambda: recurrent(nn.GRU, num_layers=2, dropout=0.4), TOKENS),
    "gru, inner dropout, time first, both ways": task(
        lambda: recurrent(nn.GRU, time_first=True, num_layers=3, dropout=0.4, bidirectional=True), TOKENS
    ),
    "plain recurrence, inner dropout": task(lambda: recurrent(nn.RNN, num_layers=2, dropout=0.4), TOKENS),
    "plain recurrence": task(lambda: recurrent(nn.RNN, num_layers=2), TOKENS),
    "plain recurrence, relu, both ways": task(
        lambda: recurrent(nn.RNN, nonlinearity="relu", bidirectional=True, bias=False), TOKENS
    ),
    "character lstm": task(
        lambda: models.CharacterLSTM(5, 4, 3), TOKENS, numbers(5, 100, 5, seed=2), loss=next_token, lr=1.0
    ),
    "attention": task(lambda: attention(dropout=0.0), TOKENS),
    "attention with dropout": task(attention, TOKENS),
    **{
        f"transformer with dropout{name}": task(partial(transformer, **options), TOKENS)
        for name, options in TRANSFORMERS.items()
    },
    "attention with dropout and weights": task(partial(multi_head, need_weights=True), TOKENS),
    "attention with dropout, time first": task(partial(multi_head, batch_first=False), TOKENS),
    "attention with dropout, bias and zeros": task(partial(multi_head, add_bias_kv=True, add_zero_attn=True), TOKENS),
    "transformer decoder with dropout": task(decoding, TOKENS),
    "attention as a function": task(dot_product, TOKENS),
    "attention as a function, causal": task(partial(dot_product, is_causal=True, scale=0.3), TOKENS),
    "attention as a function, masked": task(partial(dot_product, seen=no_padding), TOKENS),
    "attention as a function, biased, grouped": task(partial(dot_product, groups=2, seen=biased), TOKENS),
    "attention as a function, dropout": task(partial(dot_product, dropout_p=0.3), TOKENS),
    "attention as a function, dropout, causal": task(
        partial(dot_product, dropout_p=0.3, is_causal=True, scale=0.3), TOKENS
    ),
    "attention as a function, dropout, masked": task(partial(dot_product, dropout_p=0.3, seen=no_padding), TOKENS),
    "attention as a function, dropout, biased, grouped": task(
        partial(dot_product, groups=2, dropout_p=0.3, seen=biased), TOKENS
    ),
    "embedding": task(embedding, TOKENS),
    "embedding with padding": task(lambda: embedding(padding_idx=0), TOKENS),
    "group norm": task(lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), features=144), IMAGES),
    "layer norm": task(lambda: nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3))),
    "instance norm": task(lambda: images(nn.InstanceNorm2d(2, affine=True), features=128), IMAGES),
    "batch norm": task(lambda: images(nn.BatchNorm2d(2, track_running_stats=False), features=128), IMAGES),
    "batch norm after a convolution": task(
        lambda: images(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, track_running_stats=False), features=108), IMAGES, lr=0.02
    ),
    **{
        f"batch norm with running statistics, {mode}": task(tracking, IMAGES, lr=0.02, batch_norm=mode)
        for mode in ("shared", "local", "frozen")
    },
    "instance norm with running statistics": task(
        lambda: images(nn.InstanceNorm2d(2, affine=True, track_running_stats=True), features=128), IMAGES
    ),
    "batch norm as a function": task(lambda: apply(functional_norm, 108, conv=nn.Conv2d(2, 3, 3)), IMAGES, lr=0.02),
    "batch centred by hand": task(lambda: apply(lambda self, x: self.output(x - x.mean(0)))),
    "tokens with a mask": task(
        masked_attention,
        {"ids": TOKENS, "mask": MASK},
        torch.where(MASK, numbers(5, 100, 5, seed=2), -100),
        loss=next_token,
        lr=0.5,
    ),
    "two inputs and two heads": task(
        two_heads,
        (VECTORS, normal(100, 2, seed=6)),
        {"kind": CLASSES, "place": normal(100, seed=3)},
        loss=loss_of_two_heads,
        metric=accuracy_of_two_heads,
    ),
    "several labels, weighted": task(
        linear,
        VECTORS,
        {"target": numbers(2, 100, 3, seed=7), "weight": normal(100, seed=8).square()},
        loss=partial(weighted, inner=partial(binary_cross_entropy, pos_weight=[1.0, 2.0, 3.0])),
        metric=partial(unweighted, inner=binary_accuracy),
    ),
    "regression": task(lambda: nn.Linear(6, 1), VECTORS, normal(100, seed=3), loss=squared_error),
    "regression of two": task(
        lambda: nn.Linear(6, 2), VECTORS, normal(100, 2, seed=3), loss=squared_error, metric=squared_error
    ),
    "quadratic": task(
        lambda: models.Quadratic(3), normal(100, 3, 4), torch.zeros(100), loss=value, metric=value, lr=0.05
    ),
    "frozen layer": task(lambda: frozen("0.weight", "0.bias")),
    "frozen weight": task(lambda: frozen("0.weight")),
    "adapters": task(adapted(lambda: models.Perceptron(6, 5, 3), alpha=4), lr=0.5),
    "adapters with dropout": task(adapted(lambda: models.Perceptron(6, 5, 3), dropout=0.3), lr=0.5),
    "adapters of which only B is trained": task(adapted(lambda: models.Perceptron(6, 5, 3), freeze_a=True), lr=0.5),
    "adapters of convolutions": task(ADAPTED_IMAGES, IMAGES, lr=0.5),
    "adapters of embeddings": task(ADAPTED_TOKENS, TOKENS),
    "adapters of attention": task(adapted(lambda: attention(dropout=0.0)), TOKENS, lr=0.5),
    "tied weights": task(tied, TOKENS),
    "learned queries": task(queried),
    "an unused parameter": task(lambda: apply(lambda self, x: self.output(x), idle=nn.Linear(2, 2))),
    "half unseen": task(lambda: apply(half_unseen, 4, fixed=nn.Linear(6, 4), unused=nn.Linear(4, 4))),
    "part of a weight": task(lambda: Model(part_of_a_weight, weight=nn.Parameter(normal(4, 3, seed=4)))),
    "linear without bias": task(
        lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False))
    ),
    "changed in place": task(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Linear(5, 3))),
    "strided convolution of single pixels": task(
        lambda: images(nn.Conv2d(2, 3, 1, stride=2), nn.ReLU(), features=48), IMAGES
    ),
    "buffers": task(buffered),
    "a list of parameters": task(listed),
    "weight norm": task(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))),
}
