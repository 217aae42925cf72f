"""Configurations: what they build, how they are changed, and how mistakes in them are named."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from conftest import refused
from mmfl import config

EXAMPLES = Path(__file__).parent.parent / "examples"

SMALL = """
method = "random"
rounds = 2
rate = 0.5

[federation]
clients = 6

[[tasks]]
name = "digits"
data = "digits"
model = "logistic"
"""


@pytest.fixture
def small(tmp_path) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(SMALL)
    return path


def test_the_embedded_default_is_the_example_and_has_three_tasks():
    assert (EXAMPLES / "demo.toml").read_text() == config.EMBEDDED.read_text()
    experiment = config.read(None).experiment()
    assert len(experiment.federation_of(0).tasks) == 3


def test_settings_reach_every_place(small):
    read = config.read(
        small,
        [
            "rounds=7",
            "federation.clients=9",
            "tasks.digits.lr=0.25",
            "tasks.0.epochs=3",
            "tasks.digits.data.seed=4",
            'method={name="mine", allocation="full", aggregation="average"}',
        ],
        seeds=3,
        device=None,
    )
    assert (read.rounds, read.federation.clients, read.seeds, read.device) == (7, 9, 3, None)
    assert (read.tasks[0].lr, read.tasks[0].epochs) == (0.25, 3)
    assert read.tasks[0].data == {"name": "digits", "seed": 4}
    assert read.experiment().methods[0].name == "mine"


def test_a_word_needs_no_quotes_in_a_setting(small):
    assert config.read(small, ["method=mmfl-lvr"]).methods == ["mmfl-lvr"]
    assert config.read(small, ['methods=["full", "random"]']).methods == ["full", "random"]


def test_without_a_seed_of_its_own_the_federation_follows_the_run(small):
    free, fixed = config.read(small).experiment(), config.read(small, ["federation.seed=5"]).experiment()
    assert not np.array_equal(free.federation_of(0).shards[0].index, free.federation_of(1).shards[0].index)
    assert np.array_equal(fixed.federation_of(0).shards[0].index, fixed.federation_of(1).shards[0].index)


def test_tasks_with_the_same_data_share_one_copy(small):
    small.write_text(SMALL + SMALL[SMALL.index("[[tasks]]") :].replace('name = "digits"', 'name = "again"'))
    first, second = config.read(small).experiment().federation_of(0).tasks
    assert first.data is second.data


def test_what_is_written_to_a_run_reads_back_equal(small):
    for source in (small, EXAMPLES / "own_module.toml", None):
        read = config.read(source)
        again = config.parse(tomllib.loads(tomli_w.dumps(read.plain())), "config.toml")
        assert again == read


def test_nested_tables_build_partitions_availability_and_capacities(small):
    settings = [
        'federation.partition={name="labels", fraction=0.5, sizes={name="high-low", high=[40, 50], low=[5, 6]}}',
        'federation.availability={name="bernoulli", probability=0.5}',
        "federation.capacity=all",
        "federation.arrivals=[1, 1, 1, 1, 2, 2]",
        "federation.task_arrivals.digits=2",
    ]
    federation = config.read(small, settings).experiment().federation_of(0)
    assert federation.sizes.max() <= 50
    assert federation.arrivals.tolist() == [1, 1, 1, 1, 2, 2]
    assert federation.task_arrivals.tolist() == [2]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["roundz=3"], ["unknown key 'roundz'", "did you mean 'rounds'"]),
        (["federation.client=3"], ["unknown key 'federation.client'", "did you mean 'clients'"]),
        (["tasks.digits.learning_rate=3"], ["unknown key 'tasks.0.learning_rate'"]),
        (["rounds=many"], ["'rounds' is 'many'", "integer"]),
        (["engine=vectorized"], ["'engine' is 'vectorized'", "vectorised"]),
        (["rounds"], ["expected key=value"]),
        (["=3"], ["expected key=value"]),
        (["rounds.x=3"], ["'rounds' is a single value"]),
        (["tasks.digit.lr=3"], ["no entry 'digit'", "did you mean 'digits'"]),
        (["tasks=3"], ["'tasks' is 3", "list"]),
    ],
)
def test_mistakes_in_settings_are_named_with_their_place(small, settings, words):
    with refused(*words):
        config.read(small, settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["method=mmfl-lrv"], ["unknown method 'mmfl-lrv'", "did you mean 'mmfl-lvr'", "lists all"]),
        (["tasks.digits.data=digit"], ["unknown data 'digit'", "did you mean 'digits'", "mmfl datasets"]),
        (["tasks.digits.model=logistc"], ["unknown model 'logistc'", "did you mean 'logistic'"]),
        (["tasks.digits.model.input=3"], ["model 'logistic'", "unknown option 'input'", "did you mean 'inputs'"]),
        (["tasks.digits.data.sed=3"], ["data 'digits'", "unknown option 'sed'", "did you mean 'seed'"]),
        (["tasks.digits.loss=crossentropy"], ["unknown loss", "did you mean 'cross_entropy'"]),
        (["tasks.digits.metric=accurate"], ["unknown metric", "did you mean 'accuracy'"]),
        (["federation.partition=label"], ["unknown partition 'label'", "did you mean 'labels'"]),
        (["federation.partition.fraction=3"], ["a table needs a 'name'"]),
        (["federation.availability=allways"], ["unknown availability", "did you mean 'always'"]),
        (["tasks.digits.data=no_such_module.load"], ["cannot import 'no_such_module'"]),
        (["tasks.digits.data=math.pi"], ["gives a float", "expected an mmfl data set"]),
        (["tasks.digits.model=mmfl.models.LogisticRegresion"], ["did you mean 'LogisticRegression'"]),
        (["federation.clients=0"], ["clients is 0"]),
        (["federation.capacity=2"], ["capacity 2", "expected 1 to 1"]),
        (["federation.capacity=al"], ["did you mean 'all'"]),
        (["tasks.digits.model.inputs=63"], ["the model fails on inputs of shape"]),
        (["tasks.digits.model.classes=9"], ["label 9 at row", "the model has 9 outputs (labels 0 to 8)"]),
        (["tasks=[]"], ["no tasks"]),
        (["rounds=0"], ["rounds is 0"]),
        (["seeds=0"], ["no seeds"]),
    ],
)
def test_mistakes_in_meaning_are_named_when_the_experiment_is_built(small, settings, words):
    with refused(*words):
        config.read(small, settings).experiment().federation_of(0)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"rounds = ", ["not valid TOML"]),
        (b"\xff\xfe", ["cannot be read"]),
        (b"[[tasks]]\nname = 'x'", ["'tasks.0.data' is missing"]),
        (None, ["does not exist"]),
    ],
)
def test_an_unreadable_configuration_is_named(tmp_path, content, words):
    path = tmp_path / "broken.toml"
    if content is not None:
        path.write_bytes(content)
    with refused("broken.toml", *words):
        config.read(path)
    with refused("cannot be read"):
        config.read(tmp_path)
