"""Dropout of every kind keeps its share, and its random numbers depend on their address alone."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import Model, both_modes, federation, normal, task, train_alone
from torch import Tensor, nn

from mmfl.engine.attention import attention_with_dropout
from mmfl.engine.dropout import draw_keep_mask
from mmfl.engine.operators import DROPOUT, Operators
from mmfl.federation.objectives import value

CPU, WIDTH = torch.device("cpu"), 2000


def by_element(self: Any, x: Tensor) -> Tensor:
    return F.dropout(x * self.weight, 0.25, self.training).sum(1)


def by_channel(self: Any, x: Tensor) -> Tensor:
    return (
        F.dropout2d((x * self.weight)[:, :, None, None].expand(-1, -1, 2, 2), 0.25, self.training).mean((1, 2, 3))
        * WIDTH
    )


def by_attention(self: Any, x: Tensor) -> Tensor:
    """One query that looks at all values alike."""
    key, values = torch.zeros(len(x), 1, WIDTH, 1), (x * self.weight)[:, None, :, None]
    p = 0.25 if self.training else 0.0
    return F.scaled_dot_product_attention(key[:, :, :1], key, values, dropout_p=p).flatten() * WIDTH


def by_attention_with_weights(self: Any, x: Tensor) -> Tensor:
    values, one, none = (x * self.weight).T[:, :, None], torch.ones(1, 1), torch.zeros(3)
    same = {"q_proj_weight": 0 * one, "k_proj_weight": 0 * one, "v_proj_weight": one, "use_separate_proj_weight": True}
    fixed = (1, 1, None, none, None, None, False, 0.25, one, none[:1])
    return (
        F.multi_head_attention_forward(values[:1], values, values, *fixed, training=self.training, **same)[0].flatten()
        * WIDTH
    )


@both_modes
@pytest.mark.parametrize("compute", [by_element, by_channel, by_attention, by_attention_with_weights])
def test_dropout_drops_its_share_anew_for_every_client_round_and_seed(compute, mode):
    masks = torch.cat([trained_masks(compute, mode, round=r, seed=s) for r, s in [(1, 0), (2, 0), (1, 1)]])
    kept = masks > 0
    torch.testing.assert_close(masks[kept], torch.full_like(masks[kept], 1 / 0.75), rtol=1e-3, atol=0)
    assert_independent(kept, 0.75)


@both_modes
@pytest.mark.parametrize("compute", [by_element, by_attention])
def test_dropout_drops_anew_at_every_step(compute, mode):
    (steps, _) = trained_masks(compute, mode, epochs=2)
    counts = torch.bincount((steps * 0.75).round().long(), minlength=3) / WIDTH
    torch.testing.assert_close(counts, torch.tensor([0.25**2, 2 * 0.25 * 0.75, 0.75**2]), rtol=0, atol=0.04)


def trained_masks(compute: Callable[..., Tensor], mode: str, epochs: int = 1, **changes: Any) -> Tensor:
    """The updates of two clients, of a loss whose gradient is the mask: sums of the masks of their steps."""
    options = {"loss": value, "metric": value, "lr": 1.0, "epochs": epochs}
    model = lambda: Model(compute, weight=nn.Parameter(torch.ones(WIDTH)))  # noqa: E731
    pool = federation(task(model, torch.ones(100, WIDTH), torch.zeros(100), **options), sizes=(1, 1))
    return train_alone(pool, mode=mode, **changes).flat


def assert_independent(kept: Tensor, share: float) -> None:
    """Each row keeps this share, and what two rows keep has nothing to do with each other."""
    kept = kept.float()
    assert ((kept.mean(1) - share).abs() < 0.05).all()
    overlap = kept @ kept.T / kept.shape[1]
    assert ((overlap - share**2)[~torch.eye(len(kept), dtype=torch.bool)].abs() < 0.05).all()


def test_every_place_in_a_module_and_every_key_has_masks_of_its_own():
    masks = []
    with Operators(DROPOUT) as operators:
        for key in (1, 2):
            operators.begin(torch.tensor(key))
            for _ in range(3):
                masks.append(F.dropout(torch.ones(4, WIDTH), 0.4).flatten() > 0)
            masks.append(F.alpha_dropout(torch.ones(4, WIDTH), 0.4, True).flatten() > 0)
    assert_independent(torch.stack(masks), 0.6)


@pytest.mark.parametrize("p", [1e-9, 0.001, 0.1, 1 / 3, 0.5, 0.9, 0.9999])
def test_the_share_that_is_dropped_is_p_and_neighbours_do_not_depend_on_each_other(p):
    kept = draw_keep_mask((50, 40, 1000), CPU, p, 7).float()
    deviation = math.sqrt(p * (1 - p) / kept.numel()) + 1 / 65536
    assert abs(float(kept.mean()) - (1 - p)) < 4 * deviation
    for n in range(3):
        one, other = kept.narrow(n, 0, kept.shape[n] - 1), kept.narrow(n, 1, kept.shape[n] - 1)
        both = float(((one - one.mean()) * (other - other.mean())).mean())
        assert abs(both) < 5 * (p * (1 - p) + 1 / 65536) / math.sqrt(one.numel())


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 6, 9), (4, 1, 1), (4, 6, 8)])
def test_padding_a_tensor_along_any_dimension_leaves_its_mask(shape):
    whole = draw_keep_mask((4, 6, 9), CPU, 0.5, 3, 1)
    assert torch.equal(draw_keep_mask(shape, CPU, 0.5, 3, 1), whole[tuple(map(slice, shape))])


MASKS: dict[str, dict[str, Any]] = {
    "no mask": {},
    "scaled": {"scale": 0.1},
    "causal": {"is_causal": True},
    "bool": {"attn_mask": normal(2, 1, 5, 5, seed=4) > 0},
    "bool, nothing to look at": {"attn_mask": torch.arange(5)[:, None].expand(5, 5) > 1},
    "float": {"attn_mask": normal(5, 5, seed=4)},
    "float, nothing to look at": {"attn_mask": torch.where(torch.arange(5)[:, None].expand(5, 5) > 1, 0.0, -math.inf)},
}


@pytest.mark.parametrize("heads", [4, 2], ids=["each its own", "grouped"])
@pytest.mark.parametrize("kind", MASKS)
def test_attention_that_drops_nothing_is_torchs_own(kind, heads):
    query, key, values = (normal(2, h, 5, 3, seed=h + n).requires_grad_() for n, h in enumerate((4, heads, heads)))
    options = {**MASKS[kind], "enable_gqa": heads == 2}
    everything = lambda shape, device, p: torch.ones(shape, dtype=torch.bool)  # noqa: E731
    ours = 0.75 * attention_with_dropout(everything, query, key, values, dropout_p=0.25, **options)
    torchs = F.scaled_dot_product_attention(query, key, values, **options)
    for got, expected in zip(outcome(ours, query, key, values), outcome(torchs, query, key, values), strict=True):
        torch.testing.assert_close(got, expected)


def outcome(output: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [output, *torch.autograd.grad((output * normal(*output.shape, seed=9)).sum(), inputs)]


def test_everything_is_dropped_where_p_is_one():
    with Operators(DROPOUT):
        for drop in (F.dropout, F.dropout2d, F.alpha_dropout):
            assert not drop(torch.ones(2, 3, 4, 4), 1.0, True).any()
        query = normal(2, 1, 4, 4)
        assert not F.scaled_dot_product_attention(query, query, query, dropout_p=1.0).any()


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("drop", [F.alpha_dropout, F.feature_alpha_dropout])
def test_alpha_dropout_preserves_mean_and_variance(drop, p):
    with Operators(DROPOUT):
        dropped = drop(normal(300, 300, 4), p, True)
    assert abs(float(dropped.mean())) < 0.02
    assert abs(float(dropped.var()) - 1) < 0.02


def test_a_single_number_is_kept_or_dropped():
    with Operators(DROPOUT) as operators:
        kept = [F.dropout(torch.tensor(1.0), 0.5).item() for _ in range(100)]
    assert set(kept) == {0.0, 2.0}
    assert operators.dropouts == 100


def test_dropout_in_place_changes_its_input():
    x = torch.ones(100, 100)
    with Operators(DROPOUT):
        F.dropout(x, 0.5, True, inplace=True)
    assert set(x.unique().tolist()) == {0.0, 2.0}
