"""Inputs and targets of any structure, from arrays to a trained model, and the mistakes in them."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import mmfl
from conftest import refusals, refused
from mmfl import Federation, Task, objectives, partition
from mmfl.data import Dataset, from_arrays

RNG = np.random.default_rng(0)
IDS, MASK, LABEL = RNG.integers(0, 7, (60, 4)), np.ones((60, 4), dtype=np.uint8), np.arange(60) % 3
NAMED = {"ids": IDS, "mask": MASK}


class Bag(nn.Module):
    """The mean of the tokens' vectors that are not masked."""

    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(7, 5), nn.Linear(5, 3)

    def forward(self, ids, mask):
        assert mask.dtype == torch.float32, "bytes are scaled"
        return self.output((self.embedding(ids) * mask[..., None]).mean(1))


def test_arrays_keep_their_structure_and_rows_stay_together():
    x, y = {"ids": IDS, "pair": (np.arange(60.0), np.arange(60))}, (LABEL, {"row": np.arange(60)})
    made = from_arrays(x, y, owner=np.arange(60) % 6)
    assert made.x["ids"].shape == (48, 4)
    assert made.x["pair"][0].dtype == torch.float32
    for inputs, (label, rest), owner in (
        (made.x, made.y, made.owner),
        (made.x_test, made.y_test, made.owner_test),
    ):
        assert inputs["pair"][0].tolist() == inputs["pair"][1].tolist() == rest["row"].tolist()
        assert (label == rest["row"] % 3).all()
        assert owner.tolist() == (rest["row"] % 6).tolist()


def test_a_data_frame_is_an_array_whatever_its_index():
    frame = pd.DataFrame({"age": [30, 40, 50, 60], "height": [1.6, 1.7, 1.8, 1.9]}, index=[3, 2, 1, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = from_arrays(frame, frame["age"] > 45, test_share=0.5)
    assert made.x.shape == (2, 2)
    assert ((made.x[:, 0] > 45) == made.y).all()


def test_a_list_and_a_tuple_of_numbers_are_arrays():
    made = from_arrays([[1, 2], (3, 4), [5, 6]], (0, 1, 0), test_share=0.4)
    assert made.x.shape == (2, 2)


def test_a_model_gets_a_dictionary_by_name_and_a_tuple_by_place():
    for x in (NAMED, (IDS, MASK)):
        federation = Federation([Task("bag", Bag, from_arrays(x, LABEL), batch_size=4)], 6)
        run = mmfl.train(federation, "random", rounds=2, rate=0.5)
        assert np.isfinite(run.loss.to_numpy()).all()


def test_labels_are_the_whole_numbers_among_the_targets():
    data = from_arrays(NAMED, {"target": LABEL, "weight": np.ones(60)})
    task = Task("bag", Bag, data, loss=objectives.weighted, metric=objectives.unweighted)
    federation = Federation([task], 6, partition=partition.labels(0.34))
    assert all(len(data.y["target"][federation.shards[0].of(client)].unique()) == 1 for client in range(6))
    with refused("'labels'", "not class numbers"):
        partition.labels(0.34)(from_arrays(IDS, (LABEL, LABEL)), 6, RNG)


def tensors(**changes):
    """A small data set of a dictionary, with changes."""
    whole = {"x": {"a": torch.zeros(4, 2), "b": torch.zeros(4)}, "y": torch.zeros(4)}
    whole |= {"x_test": {"a": torch.zeros(2, 2), "b": torch.zeros(2)}, "y_test": torch.zeros(2)}
    return Dataset("mine", **(whole | changes))


def bag(x, **options):
    return Task("bag", Bag, from_arrays(x, LABEL), **options)


@refusals(
    (lambda: tensors(x={"a": torch.zeros(4, 2), "b": torch.zeros(3)}), "'mine' (training)", "['b'] has 3 rows", "4"),
    (lambda: tensors(x=(torch.zeros(4, 2), 3.0)), "inputs[1] is a float", "a row for each"),
    (lambda: tensors(x={}), "'mine' (training)", "an empty dict"),
    (lambda: tensors(y=torch.zeros(5)), "4 inputs", "5 targets"),
    (lambda: tensors(x={"a": torch.zeros(4, 2)}), "inputs have shapes {a: (2,)}", "{a: (2,), b: ()}"),
    (lambda: tensors(x=(torch.zeros(4, 2), torch.zeros(4))), "[(2,), ()]", "{a: (2,), b: ()}"),
    (lambda: tensors(x={"a": torch.full((4, 2), np.nan), "b": torch.zeros(4)}), "input['a'] at row 0", "finite"),
    (lambda: from_arrays({"a": IDS, "b": ["cat"] * 60}, LABEL), "x['b']", "not an array of numbers"),
    (lambda: from_arrays(IDS, np.array(["cat", "dog"] * 30)), "y: ", "'cat' is text", "np.unique"),
    (lambda: from_arrays((IDS, MASK[:9]), LABEL), "inputs[1] has 9 rows", "60"),
    (lambda: bag({"ids": IDS, "musk": MASK}).check(), "'bag'", "{ids: (2, 4), musk: (2, 4)}", "'musk'"),
    (lambda: bag((IDS,)).check(), "'bag'", "the model fails", "mask"),
    (lambda: bag(NAMED, loss=objectives.weighted).check(), "the loss fails", '{"target": ..., "weight": ...}'),
    (lambda: bag(NAMED, loss=lambda o, t: o["a"] - t).check(), "the loss fails", "(2, 3)"),
)
def test_a_structure_that_does_not_fit_is_refused_in_one_line(make, words):
    with refused(*words):
        make()


# --- losses --------------------------------------------------------------------------

LOGITS, CLASS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 3, -100, 1, 2, 3])


@pytest.mark.parametrize("options", [{}, {"weight": [0.5, 1.0, 2.0, 3.0]}, {"label_smoothing": 0.2}])
def test_cross_entropy_takes_the_arguments_of_torch(options):
    tensors = {k: torch.tensor(v) if k == "weight" else v for k, v in options.items()}
    expected = nn.functional.cross_entropy(LOGITS, CLASS, reduction="none", **tensors)
    assert torch.equal(objectives.cross_entropy(LOGITS, CLASS, **options), expected)
    assert objectives.cross_entropy(LOGITS, CLASS, **options)[2] == 0


def test_a_text_is_the_mean_of_the_tokens_that_count():
    logits, tokens = LOGITS.view(2, 3, 4), CLASS.view(2, 3)
    (losses, correct), counted = ([f(logits, tokens) for f in (objectives.next_token, objectives.accuracy)], [0, 1])
    assert losses[0] == pytest.approx(float(nn.functional.cross_entropy(logits[0, counted], tokens[0, counted])))
    assert losses[1] == pytest.approx(float(nn.functional.cross_entropy(logits[1], tokens[1])))
    assert correct[0] == (logits[0, counted].argmax(-1) == tokens[0, counted]).float().mean()
    nothing = torch.full((2, 3), -100)
    assert objectives.next_token(logits, nothing).tolist() == objectives.accuracy(logits, nothing).tolist() == [0, 0]


def test_binary_cross_entropy_and_weights_are_those_of_torch():
    hot, weight = (LOGITS > 0).long(), torch.arange(6.0)
    positive = torch.tensor([1.0, 2, 3, 4])
    expected = nn.functional.binary_cross_entropy_with_logits(
        LOGITS, hot.float(), pos_weight=positive, reduction="none"
    )
    assert torch.equal(objectives.binary_cross_entropy(LOGITS, hot, pos_weight=positive), expected)
    targets = {"target": hot, "weight": weight}
    torch.testing.assert_close(
        objectives.weighted(LOGITS, targets, inner=objectives.binary_cross_entropy),
        weight * nn.functional.binary_cross_entropy_with_logits(LOGITS, hot.float(), reduction="none").mean(1),
    )
    assert objectives.unweighted(LOGITS, targets, inner=objectives.binary_accuracy).eq(1).all()
