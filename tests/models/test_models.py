"""The networks: shapes, numbers of parameters, what their options do and which are refused."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conftest import refusals, refused
from mmfl import Task, data, models, registry
from mmfl.engine.architecture import signature
from mmfl.federation import objectives
from mmfl.models import (
    MODELS,
    CelebACNN,
    CharacterLSTM,
    LargerCNN,
    LogisticRegression,
    Perceptron,
    PreActResNet18,
    Quadratic,
    SmallCNN,
)

# A network small enough to train in a test, what it is fed, and what comes out of it.
SMALL: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], tuple[int, ...]]] = {
    "logistic": (partial(LogisticRegression, 12, 3), (3, 2, 2), (3,)),
    "perceptron": (partial(Perceptron, 12, 5, 3), (12,), (3,)),
    "small-cnn": (partial(SmallCNN, 8, 2, (4, 6), 5, 3, padding=1), (2, 8, 8), (3,)),
    "larger-cnn": (partial(LargerCNN, 10, 1, (4, 6), 5, 3), (1, 10, 10), (3,)),
    "preact-resnet18": (partial(PreActResNet18, 3, width=4), (3, 16, 16), (3,)),
    "preact-resnet18, batch norm": (partial(PreActResNet18, 3, width=4, norm="batch"), (3, 16, 16), (3,)),
    "celeba-cnn": (partial(CelebACNN, 20, width=4), (3, 20, 20), (2,)),
    "celeba-cnn, group norm": (partial(CelebACNN, 20, width=4, norm="group"), (3, 20, 20), (2,)),
    "character-lstm": (partial(CharacterLSTM, 6, 4, 5), (7,), (7, 6)),
    "quadratic": (partial(Quadratic, 3, curvature=0.1), (3, 4), ()),
}
every_network = pytest.mark.parametrize("name", SMALL)


def inputs(name: str, examples: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (examples, *SMALL[name][1])
    if name == "character-lstm":
        return torch.randint(0, 6, shape, generator=generator)
    return torch.randn(shape, generator=generator)


def task_of(name: str) -> Task:
    """The small network on a few examples with targets of its kind."""
    x, outputs = inputs(name, 20), SMALL[name][2]
    y = torch.zeros(20) if outputs == () else torch.zeros(20, *outputs[:-1], dtype=torch.long)
    loss = {(): objectives.value, (3,): objectives.cross_entropy, (2,): objectives.cross_entropy}
    metric = objectives.value if outputs == () else objectives.accuracy
    made = data.Dataset(name, x, y, x, y)
    return Task(name, SMALL[name][0], made, loss=loss.get(outputs, objectives.next_token), metric=metric)


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_every_registered_network_is_tested():
    assert {name.split(",")[0] for name in SMALL} == set(MODELS)
    assert all(getattr(models, factory.__name__) is factory for factory in MODELS.values())


@every_network
def test_outputs_have_the_shape_of(name):
    make, _, outputs = SMALL[name]
    assert make()(inputs(name)).shape == (5, *outputs)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (partial(LogisticRegression, 60, 5), 60 * 5 + 5),
        (partial(Perceptron, 64, 32, 10), 64 * 32 + 32 + 32 * 10 + 10),
        (partial(SmallCNN), 9 * 32 + 32 + 32 * 64 * 9 + 64 + 1600 * 512 + 512 + 512 * 10 + 10),
        (partial(SmallCNN, 8, padding=1), 9 * 32 + 32 + 32 * 64 * 9 + 64 + 256 * 512 + 512 + 512 * 10 + 10),
        (partial(LargerCNN), 9 * 64 + 64 + 64 * 128 * 9 + 128 + 3200 * 1024 + 1024 + 1024 * 47 + 47),
        (partial(LargerCNN, classes=62), 3_415_870),
        (partial(PreActResNet18), 11_172_170),
        (partial(PreActResNet18, norm="batch"), 11_172_170),
        (partial(CelebACNN), 896 + 3 * 9248 + 4 * 64 + 6 * 6 * 32 * 2 + 2),
        (partial(CharacterLSTM), 80 * 128 + 1024 * (128 + 256 + 2) + 1024 * (256 + 256 + 2) + 256 * 80 + 80),
        (partial(Quadratic, 97), 97),
    ],
    ids=lambda value: value.func.__name__ if isinstance(value, partial) else str(value),
)
def test_number_of_parameters(make, expected):
    assert parameters(make()) == expected


@pytest.mark.parametrize(("width", "channels", "classes"), [(8, 3, 10), (16, 1, 62)])
def test_parameters_of_the_residual_network_by_hand(width, channels, classes):
    count = 9 * channels * width
    before = width
    for stage in range(4):
        wide = width * 2**stage
        count += 9 * before * wide + 3 * 9 * wide * wide  # 3x3 convolutions
        count += before * wide if stage else 0  # the 1x1 projection
        count += 2 * (before + 3 * wide)  # scales and shifts of the norms
        before = wide
    count += 2 * before + before * classes + classes
    assert parameters(PreActResNet18(classes, width, channels)) == count


@every_network
def test_gradients_reach_every_parameter_of(name):
    task = task_of(name)
    module = task.build()
    if name == "quadratic":
        nn.init.ones_(module.point)  # it starts at zero
    task.loss(module(task.data.x), task.data.y).mean().backward()
    untouched = {key for key, p in module.named_parameters() if p.grad is None or p.grad.abs().max() < 1e-6}
    cancelled = {f"convolutions.{n}.bias" for n in range(4)} if name == "celeba-cnn" else set()
    assert untouched == cancelled


@every_network
def test_a_network_is_its_parameters_and_nothing_else(name):
    module = SMALL[name][0]()
    assert list(module.state_dict()) == [key for key, _ in module.named_parameters()]
    assert not list(module.buffers())


@every_network
def test_a_task_accepts(name):
    task_of(name).check()


@every_network
def test_two_tasks_with_the_same_network_can_share_a_cohort(name):
    assert signature(task_of(name)) == signature(task_of(name))


@every_network
def test_only_batch_norm_lets_examples_influence_each_other(name):
    task = task_of(name)
    module, x = task.build().eval(), task.data.x
    alone, together = module(x[:4]), module(x)[:4]
    assert torch.allclose(alone, together, atol=1e-5) != (name in ("celeba-cnn", "preact-resnet18, batch norm"))


def test_networks_are_found_by_name_with_options():
    module = registry.build("model", {"name": "preact-resnet18", "width": 6, "norm": "group", "groups": 3}, MODELS)
    assert module.first.out_channels == 6
    assert module.norm.num_groups == 3
    with refused("unknown option 'widths'", "did you mean 'width'?"):
        registry.build("model", {"name": "celeba-cnn", "widths": 3}, MODELS)


@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("model", [SmallCNN, LargerCNN])
def test_small_images_are_taken_down_to_the_last_pixel_and_refused_below(model, padding):
    least = 4 if padding else 10
    for side in range(least, 14):
        assert model(side, widths=(2, 3), hidden=4, padding=padding)(torch.zeros(1, 1, side, side)).isfinite().all()
    with refused(model.__name__, f"{least - 1}x{least - 1}", f"a side of at least {least}"):
        model(least - 1, widths=(2, 3), hidden=4, padding=padding)


@pytest.mark.parametrize("side", [1, 15, 16, 17, 33, 84])
def test_faces_of_any_size_are_pooled_to_a_sixteenth_rounded_up(side):
    module = CelebACNN(side, width=2)
    assert module.output.in_features == 2 * (-(-side // 16)) ** 2
    assert module(torch.randn(2, 3, side, side)).shape == (2, 2)


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_residual_blocks_add_to_their_input_or_to_a_projection_of_it_activated(norm):
    module = PreActResNet18(width=4, norm=norm)
    x = torch.randn(3, 4, 9, 9)
    same, changing = module.blocks[1], module.blocks[2]
    nn.init.zeros_(same.second.weight)
    nn.init.zeros_(changing.second.weight)
    assert torch.equal(same(x), x)
    activated = F.relu(changing.first_norm(x))
    torch.testing.assert_close(changing(x), F.conv2d(activated, changing.projection.weight, stride=2))


def test_stages_of_the_residual_network_halve_the_image_and_double_the_width():
    module = PreActResNet18(width=4)
    x, shapes = module.first(torch.randn(1, 3, 32, 32)), []
    for block in module.blocks:
        x = block(x)
        shapes.append(tuple(x.shape[1:3]))
    assert shapes == [s for s in [(4, 32), (8, 16), (16, 8), (32, 4)] for _ in range(2)]


def test_characters_are_predicted_from_those_before_alone():
    module = CharacterLSTM(6, 4, 5)
    x = inputs("character-lstm")
    changed = x.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 6
    same = (module(x) - module(changed)).abs().amax((0, 2)) < 1e-6
    assert same.tolist() == [True] * 4 + [False] * 3


@refusals(
    (lambda: LogisticRegression(0), "'LogisticRegression'", "inputs is 0", "at least 1"),
    (lambda: Perceptron(hidden=-1), "'Perceptron'", "hidden is -1"),
    (lambda: SmallCNN(28.0), "'SmallCNN'", "side is 28.0", "whole number"),
    (lambda: SmallCNN(widths=(4,)), "'SmallCNN'", "widths are [4]", "two convolutions"),
    (lambda: SmallCNN(widths=(4, 0)), "'SmallCNN'", "the second width is 0"),
    (lambda: SmallCNN(padding=-1), "'SmallCNN'", "padding is -1", "0 or 1"),
    (lambda: SmallCNN(8), "'SmallCNN'", "8x8 images", "at least 10, or padding=1"),
    (lambda: PreActResNet18(width=0), "'PreActResNet18'", "width is 0"),
    (lambda: PreActResNet18(norm="bacth"), "'PreActResNet18'", "unknown norm 'bacth'", "did you mean 'batch'?"),
    (lambda: PreActResNet18(width=6, groups=4), "'PreActResNet18'", "4 groups do not divide 6 channels"),
    (lambda: PreActResNet18(groups=0), "'PreActResNet18'", "groups is 0"),
    (lambda: CelebACNN(norm="layer"), "'CelebACNN'", "unknown norm 'layer'", "batch, group"),
    (lambda: CelebACNN(width=5, norm="group"), "'CelebACNN'", "2 groups do not divide 5 channels"),
    (lambda: CharacterLSTM(layers=0), "'CharacterLSTM'", "layers is 0"),
    (lambda: Quadratic(0), "'Quadratic'", "size is 0"),
)
def test_options_are_refused(make, words):
    with refused(*words):
        make()


def test_groups_do_not_matter_to_batch_norm():
    assert CelebACNN(width=5)(torch.randn(2, 3, 84, 84)).shape == (2, 2)
