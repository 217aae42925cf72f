"""Operators that replace torch's own, against what they replace."""

import pytest
import torch
import torch.nn.functional as F
from small import normal

from mmfl.engine.operators import Operators

SEEN = normal(4, 5, seed=4) > 0
SEEN[2] = False  # nothing to attend to
OPTIONS = {
    "plain": {},
    "mask": {"attn_mask": SEEN},
    "added mask": {"attn_mask": normal(2, 4, 5, seed=5)},
    "causal": {"is_causal": True},
    "scale": {"scale": 2.0},
}


@pytest.mark.parametrize("case", OPTIONS)
def test_attention_with_dropout_is_torchs_own_but_for_the_random_numbers(case):
    query, key, value = normal(3, 2, 4, 6, seed=1), normal(3, 2, 5, 6, seed=2), normal(3, 2, 5, 6, seed=3)
    expected = F.scaled_dot_product_attention(query, key, value, **OPTIONS[case])
    with Operators(frozenset({"attention"})):
        kept = F.scaled_dot_product_attention(query, key, value, dropout_p=1e-12, **OPTIONS[case])
        dropped = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5, **OPTIONS[case])
        gone = F.scaled_dot_product_attention(query, key, value, dropout_p=1.0, **OPTIONS[case])
    with Operators(frozenset({"attention"})) as again:
        again.dropouts = 1
        assert torch.equal(dropped, F.scaled_dot_product_attention(query, key, value, dropout_p=0.5, **OPTIONS[case]))
    torch.testing.assert_close(kept, expected)
    assert not torch.allclose(dropped, expected, atol=0.1)
    assert not gone.any()
