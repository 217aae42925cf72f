"""Methods by name, by parts and by a user's own classes."""

import sys

import numpy as np
import pytest
import torch

from conftest import refusals, refused, view_of
from mmfl import aggregation, allocation, local
from mmfl.methods import METHODS, Method, make_method
from mmfl.updates import Updates

PARTS = {"name": "mine", "allocation": "full", "aggregation": "average"}
SIGNALS = dict.fromkeys(("losses", "norms", "residuals"), np.array([[1.0, 2.0], [3.0, 0.5]]))
VIEW = view_of([[3, 1], [1, 1]], 1, 1.0).with_signals(**SIGNALS)

OWN = """
from mmfl.aggregation import AggregationRule
from mmfl.allocation import Allocation, AllocationRule
from mmfl.methods import Method
import numpy as np

class FirstClient(AllocationRule):
    def __init__(self, task=0):
        self.task = task

    def allocate(self, view, state):
        count = np.zeros(view.sizes.shape, dtype=np.int64)
        count[0, self.task] = 1
        return Allocation.of(count, count.astype(float)), state

class Halfway(AggregationRule):
    def start(self, clients, weights):
        return 0

    def aggregate(self, weights, updates, view, state):
        return weights - 0.5 * updates.flat.mean(0), state + 1

def ready():
    return Method("ready", FirstClient(), Halfway())

number = 7
"""


@pytest.fixture
def _own_module(tmp_path, monkeypatch):
    (tmp_path / "own_rules.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "own_rules", raising=False)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"method": "fedstale", "beta": 0.2}, "fedstale(beta=0.2)"),
        ({"method": "mmfl-lvr", "floor": 0.1, "mix": 0.5}, "mmfl-lvr(floor=0.1, mix=0.5)"),
        ({"method": "fedstale", "beta": 0.2, "name": "mine"}, "mine"),
        ({"method": "fedstale", "name": "mine"}, "mine"),
        ({"method": "fedstale", "name": 3}, "3"),
        ({"method": "fedstale"}, "fedstale"),
    ],
)
def test_a_method_is_named_by_its_options_or_as_one_likes(spec, name):
    before = dict(spec)
    assert make_method(spec).name == name
    assert spec == before


def test_options_reach_the_parts_of_a_named_method():
    assert make_method({"method": "fedstale", "beta": 0.2}).aggregation.beta == 0.2
    assert make_method({"method": "fedavg", "rounds": 7}).allocation.rounds == 7
    assert make_method({"method": "roundrobin-gvr", "mix": 0.3}).allocation.inner.mix == 0.3
    assert make_method({"method": "pareto-multi-ucb", "fill": True, "gamma": 0.5}).allocation.inner.gamma == 0.5
    assert isinstance(make_method({"method": "ranklist-multi-ucb", "warm_up": False}).allocation, allocation.Ranklist)
    grouped = make_method({"method": "mmfl-group", "weighted": False, "largest": 3, "metric": "euclidean"})
    assert (grouped.aggregation.weighted, grouped.allocation.largest) == (False, 3)
    assert (grouped.allocation.metric, grouped.allocation.standardise) == ("euclidean", True)
    half = {"precision": "float16"}
    for name in METHODS:
        if METHODS[name].stores != "none":
            method = make_method({"method": name, "keep": half})
            keeps = method.local.keep if name == "scaffold" else method.aggregation.keep
            assert keeps.precision == "float16"


def test_a_method_is_taken_as_it_is():
    method = Method("mine", allocation.Full(), aggregation.Average())
    assert make_method(method) is method


def test_a_table_composes_parts_and_passes_their_options():
    method = make_method(
        {
            "name": "mine",
            "allocation": {"name": "loss-variance", "floor": 0.1},
            "aggregation": "unbiased",
            "local": {"name": "prox", "mu": 0.5},
        }
    )
    assert method.allocation.floor == 0.1
    assert method.local == local.Prox(0.5)


@pytest.mark.usefixtures("_own_module")
@pytest.mark.parametrize("dot", [".", ":"])
def test_a_users_own_rules_work_by_dotted_path(dot):
    own = {"name": f"own_rules{dot}FirstClient", "task": 1}
    method = make_method({**PARTS, "allocation": own, "aggregation": f"own_rules{dot}Halfway"})
    drawn, _ = method.allocation.allocate(VIEW, method.allocation.start(2, 2))
    assert (drawn.client.tolist(), drawn.task.tolist()) == ([0], [1])
    flat, steps = torch.tensor([[4.0]]), np.ones(1, dtype=int)
    updates = Updates(1, drawn.client, drawn.count, drawn.probability, flat, np.zeros(1), steps)
    state = method.aggregation.start(2, torch.ones(1))
    weights, state = method.aggregation.aggregate(torch.ones(1), updates, VIEW, state)
    assert (weights.tolist(), state) == ([-1.0], 1)


@pytest.mark.usefixtures("_own_module")
def test_a_users_own_method_works_by_dotted_path():
    assert make_method("own_rules.ready").name == "ready"


def part(**changes):
    return lambda: make_method({**PARTS, **changes})


@pytest.mark.usefixtures("_own_module")
@refusals(
    (lambda: make_method("mmfl-lrv"), "'mmfl-lrv'", "did you mean 'mmfl-lvr'?", f"all {len(METHODS)}"),
    (lambda: make_method("xyz"), "'xyz'", *METHODS),
    (lambda: make_method("own_rules.raedy"), "'own_rules'", "'raedy'", "did you mean 'ready'?"),
    (lambda: make_method("no_such_rules.ready"), "cannot import", "'no_such_rules'"),
    (lambda: make_method("own_rules.number"), "own_rules.number", "gives a int", "Method"),
    (lambda: make_method("..mine"), "'..mine'"),
    (lambda: make_method(42), "42"),
    (lambda: make_method({"method": "mmfl-lvr", "mixx": 0.1}), "'mmfl-lvr'", "'mixx'", "did you mean 'mix'?"),
    (lambda: make_method({"method": "lvr-systematic", "draw": "independent"}), "unknown option 'draw'"),
    (lambda: make_method({"method": "mmfl-group-inconsistent", "consistent": True}), "unknown option 'consistent'"),
    (lambda: make_method({"method": "full", "rate": 0.5}), "'full'", "unknown option 'rate'", "there are none"),
    (lambda: make_method({"method": "fedstale", "beta": "high"}), "'fedstale'", "beta='high'"),
    (lambda: make_method({"method": "fedstael"}), "'fedstael'", "did you mean 'fedstale'?"),
    (lambda: make_method({"method": "own_rules.ready", "speed": 3}), "own_rules.ready", "unknown option 'speed'"),
    (part(allocation="warm-up"), "allocation 'warm-up'", "needs the option 'inner'"),
    (part(alocation="full"), "unknown key 'alocation'", "did you mean 'allocation'?"),
    (lambda: make_method({"name": "mine", "allocation": "full"}), "needs 'aggregation'"),
    (lambda: make_method({"name": "mine", "aggregation": "average"}), "needs 'allocation'"),
    (lambda: make_method({"allocation": "full", "aggregation": "average"}), "needs 'name'"),
    (part(allocation="ful"), "unknown allocation 'ful'", "did you mean 'full'?"),
    (part(aggregation="averge"), "unknown aggregation 'averge'", "did you mean 'average'?"),
    (part(local="sdg"), "unknown local 'sdg'", "did you mean 'sgd'?"),
    (part(allocation={"floor": 1.0}), "allocation", "needs a 'name'"),
    (part(allocation=None), "allocation", "None"),
    (part(allocation={"name": "loss-variance", "flor": 1.0}), "'flor'", "did you mean 'floor'?"),
    (part(allocation={"name": "full", "speed": 1.0}), "'full'", "unknown option 'speed'"),
    (part(allocation="own_rules.Halfway"), "Halfway", "expected an mmfl.AllocationRule"),
    (part(aggregation="own_rules.FirstClient"), "FirstClient", "expected an mmfl.AggregationRule"),
    (part(allocation="own_rules.number"), "gives a int", "expected an mmfl.AllocationRule"),
    (part(allocation={"name": "own_rules.number", "size": 1}), "own_rules.number", "no options"),
    (part(local={"name": "prox", "mu": -1.0}), "prox", "mu is -1.0"),
)
def test_a_method_that_cannot_be_made_is_refused(make, words):
    with refused(*words):
        make()


@pytest.mark.parametrize(
    "call",
    [
        lambda: allocation.AllocationRule().allocate(VIEW, None),
        lambda: aggregation.AggregationRule().aggregate(torch.zeros(1), None, VIEW, None),
        lambda: aggregation.ServerOptimiser(aggregation.Unbiased(), 1.0).step(torch.zeros(1), torch.ones(1), None),
    ],
)
def test_a_rule_without_its_one_function_says_so(call):
    with pytest.raises(TypeError, match=r"does not say how to (allocate|aggregate|step)"):
        call()
