"""Configurations: what they build, how they are changed, and how mistakes in them are named."""

import inspect
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import mmfl
from conftest import refused, toy_task
from mmfl import aggregation, allocation
from mmfl.cli.training import DEFAULT_METHODS
from mmfl.deployment.settings import DeploymentSettings
from mmfl.errors import UserError
from mmfl.federation import Federation
from mmfl.runs import config
from mmfl.runs.config_schema import Config
from mmfl.updates.store import StorageOptions

EXAMPLES = Path(__file__).parents[2] / "examples"

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


def _inner(kind: str, outer: str, inner: str) -> str:
    """A setting: a method one of whose parts is made of another."""
    parts = {"allocation": '"full"', "aggregation": '"average"', kind: f'{{name="{outer}", inner={inner}}}'}
    return 'method={name="m", ' + ", ".join(f"{name}={part}" for name, part in parts.items()) + "}"


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
    settings = ["rounds=7", "federation.clients=9", "tasks.digits.lr=0.25", "tasks.0.epochs=3"]
    settings += ["tasks.digits.data.seed=4", 'method={name="mine", allocation="full", aggregation="average"}']
    read = config.read(small, settings, seeds=3, device=None)
    assert (read.rounds, read.federation.clients, read.seeds, read.device) == (7, 9, 3, None)
    assert (read.tasks[0].lr, read.tasks[0].epochs) == (0.25, 3)
    assert read.tasks[0].data == {"name": "digits", "seed": 4}
    assert read.experiment().methods[0].name == "mine"
    assert config.read(small, ["method=mmfl-lvr"]).methods == ["mmfl-lvr"]  # a word needs no quotes
    assert config.read(small, ['methods=["full", "random"]']).methods == ["full", "random"]


def test_without_a_seed_of_its_own_the_federation_follows_the_run(small):
    free, fixed = config.read(small).experiment(), config.read(small, ["federation.seed=5"]).experiment()
    assert not np.array_equal(free.federation_of(0).shards[0].index, free.federation_of(1).shards[0].index)
    assert np.array_equal(fixed.federation_of(0).shards[0].index, fixed.federation_of(1).shards[0].index)


def test_tasks_with_the_same_data_share_one_copy(small):
    small.write_text(SMALL + SMALL[SMALL.index("[[tasks]]") :].replace('name = "digits"', 'name = "again"'))
    first, second = config.read(small).experiment().federation_of(0).tasks
    assert first.data is second.data


def reread(read: config.Config) -> config.Config:
    """A configuration as a run's directory gives it back."""
    return config.parse(tomllib.loads(tomli_w.dumps(read.plain())), "config.toml")


def test_what_is_written_to_a_run_reads_back_equal(small):
    for source in (small, EXAMPLES / "own_module.toml", None):
        assert reread(config.read(source)) == config.read(source)


def test_nested_tables_build_partitions_availability_and_capacities(small):
    settings = [
        'federation.partition={name="labels", fraction=0.5, sizes={name="high-low", high=[40, 50], low=[5, 6]}}',
        'federation.availability={name="bernoulli", probability=0.5}',
        "federation.capacity=all",
        "federation.arrivals=[1, 1, 1, 1, 2, 2]",
        "federation.departures=[0, 0, 0, 9, 0, 8]",
        "federation.task_arrivals.digits=2",
    ]
    federation = config.read(small, settings).experiment().federation_of(0)
    assert federation.sizes.max() <= 50
    assert federation.arrivals.tolist() == [1, 1, 1, 1, 2, 2]
    assert federation.departures.tolist() == [0, 0, 0, 9, 0, 8]
    assert federation.task_arrivals.tolist() == [2]


def test_methods_are_names_tables_of_options_or_tables_of_parts(small):
    small.write_text(
        SMALL.replace(
            'method = "random"',
            """
methods = [
    "mmfl-lvr",
    { method = "fedstale", beta = 0.2 },
    { method = "mmfl-stalevre", keep = { where = "host", precision = "float16" }, name = "mine" },
    { name = "parts", allocation = { name = "warm-up", inner = "random-clients" }, aggregation = "average" },
]
""",
        )
    )
    read = config.read(small)
    lvr, stale, mine, parts = read.experiment().methods
    assert [m.name for m in (lvr, stale, mine, parts)] == ["mmfl-lvr", "fedstale(beta=0.2)", "mine", "parts"]
    assert stale.aggregation.beta == 0.2
    assert mine.aggregation.keep == StorageOptions("host", "float16")
    assert isinstance(parts.allocation.inner, allocation.RandomClients)
    assert reread(read) == read


def test_parts_are_made_of_parts_to_any_depth(small):
    settings = [
        'method.allocation={name="warm-up", inner={name="sequential-tasks", inner={name="fair", alpha=2}}}',
        'method.aggregation={name="adam", inner={name="fedvarp", keep={where="host"}}, lr=0.01}',
        "method.name=mine",
    ]
    (method,) = config.read(small, settings).experiment().methods
    assert isinstance(method.allocation, allocation.WarmUp)
    assert method.allocation.inner.inner.alpha == 2
    assert isinstance(method.aggregation, aggregation.ServerAdam)
    assert (method.aggregation.lr, method.aggregation.inner.keep.where) == (0.01, "host")


def test_a_task_has_the_priority_of_its_configuration(small):
    read = config.read(small, ["tasks.digits.priority=2"])
    assert [task.priority for task in read.experiment().federation_of(0).tasks] == [2.0]
    assert [task.priority for task in config.read(small).experiment().federation_of(0).tasks] == [1.0]
    assert reread(read) == read


def test_step_and_batch_sizes_may_follow_a_schedule(small):
    settings = [
        'tasks.digits.lr={name="decay", beta=30, gamma=100}',
        'tasks.digits.batch_size={name="growing", scale=1, step={name="frame-decay", beta=1, gamma=0, tasks=2}}',
    ]
    read = config.read(small, settings)
    (task,) = read.experiment().federation_of(0).tasks
    assert [task.learning_rate(t) for t in (1, 20, 200)] == [30 / 101, 0.25, 0.1]
    # Frames of two rounds leave out 1, 1/2, 1/3 of the data, but never more than nine tenths.
    sizes = [task.batches(t, np.array([50, 1])).tolist() for t in (1, 2, 3, 4, 5, 6)]
    assert sizes == [[5, 1], [5, 1], [25, 1], [25, 1], [34, 1], [34, 1]]
    assert reread(read) == read


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["roundz=3"], ["unknown key 'roundz'", "did you mean 'rounds'"]),
        (["federation.client=3"], ["unknown key 'federation.client'", "did you mean 'clients'"]),
        (["tasks.digits.learning_rate=3"], ["unknown key 'tasks.digits.learning_rate'"]),
        *(
            ([f"{key}={value}"], [f"'{key}' is {shown}", "valid"])
            for key in ("rounds", "seeds", "evaluate_every", "evaluate_last", "checkpoint_every", "federation.clients")
            for value, shown in (('"3"', "'3'"), ("true", "True"), ("2.5", "2.5"), ("nan", "nan"), ("inf", "inf"))
        ),
        *(
            ([f"tasks.digits.{key}={value}"], [f"'tasks.digits.{key}' is", "valid"])
            for key in ("epochs", "batch_size")
            for value in ('"3"', "true", "2.5", "nan")
        ),
        *(
            ([f"{key}={value}"], [f"'{key}' is", "valid"])
            for key in (
                *("rate", "federation.lacks", "tasks.digits.lr", "tasks.digits.priority"),
                *("privacy.clip", "privacy.noise"),
            )
            for value in ('"0.5"', "true")
        ),
        (["federation.capacity=true"], ["'federation.capacity' is True", "valid"]),
        (["federation.seed=1.5"], ["'federation.seed' is 1.5", "valid"]),
        (["seeds=[0, true]"], ["'seeds", "True", "valid"]),
        (["engine=vectorized"], ["'engine' is 'vectorized'", "vectorised"]),
        (["rounds"], ["expected key=value"]),
        (["=3"], ["expected key=value"]),
        (["rounds.x=3"], ["'rounds' is a single value"]),
        (["tasks.digit.lr=3"], ["no entry 'digit'", "did you mean 'digits'"]),
        (["tasks=3"], ["'tasks' is 3", "list"]),
        (["interval=3"], ["unknown key 'interval'"]),  # which begins like the name of a type
        (["str=3"], ["unknown key 'str'"]),
        (["federation.strict=3"], ["unknown key 'federation.strict'"]),
        (["federation.departures=3"], ["'federation.departures' is 3", "list"]),
        (["federation.capacity=[1.5]"], ["'federation.capacity' is [1.5]", "integer"]),
        (["methods=[3]"], ["'methods.0' is 3"]),
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
        (["tasks.digits.loss={name='cross_entropy',smoothing=0.1}"], ["loss 'cross_entropy'", "'label_smoothing'"]),
        (["tasks.digits.metric=accurate"], ["unknown metric", "did you mean 'accuracy'"]),
        (["federation.partition=label"], ["unknown partition 'label'", "did you mean 'labels'"]),
        (["federation.partition.fraction=3"], ["a table needs a 'name'"]),
        (["federation.availability=allways"], ["unknown availability", "did you mean 'always'"]),
        (["tasks.digits.data=no_such_module.load"], ["cannot import 'no_such_module'"]),
        (["tasks.digits.data={name='builtins.dict', x=1}"], ["data 'builtins.dict' has no signature; expected a fun"]),
        (["tasks.digits.data=math.pi"], ["gives a float", "expected an mmfl data set"]),
        (["tasks.digits.model=mmfl.models.LogisticRegresion"], ["did you mean 'LogisticRegression'"]),
        (["federation.capacity=2"], ["capacity 2", "expected 1 to 1"]),
        (["tasks.digits.model.inputs=63"], ["the model fails on inputs of shape"]),
        (["tasks.digits.model.classes=9"], ["label 9 at row", "the model has 9 outputs (labels 0 to 8)"]),
        (["tasks=[]"], ["no tasks"]),
        (["rounds=0"], ["rounds is 0"]),
        (["rate=nan"], ["rate is nan", "(0, 1]"]),
        *(
            ([f"tasks.digits.priority={bad}"], ["'digits'", f"priority is {bad}", "positive"])
            for bad in ("0.0", "-2.0", "nan", "inf")
        ),
        ([r'tasks.digits.name="a\u0000b"'], [r"'a\x00b'", "control character"]),
        (["seeds=[0, -1]"], ["seed is -1"]),
        (["tasks.digits.data.seed=1.5"], ["seed is 1.5", "whole number"]),
        (["tasks.digits.data.test_share=nan"], ["test_share is nan"]),
        (["seeds=0"], ["no seeds"]),
        (['methods=[{method="mmfl-lvr", mixx=1}]'], ["method 'mmfl-lvr'", "'mixx'", "did you mean 'mix'"]),
        (['methods=[{method="fedstael"}]'], ["unknown method 'fedstael'", "did you mean 'fedstale'"]),
        (['methods=[{method="fedstale", beta=1.2}]'], ["'fedstale'", "beta is 1.2", "[0, 1]"]),
        (['methods=[{method="fedstale", beta="high"}]'], ["'fedstale'", "beta='high'"]),
        (['methods=["random", {method="random"}]'], ["methods", "repeat"]),
        (['methods=[{method="mmfl-stalevre", keep={were="host"}}]'], ["'were'", "did you mean 'where'"]),
        (['methods=[{method="mmfl-stalevre", keep={where="hots"}}]'], ["'hots'", "did you mean 'host'"]),
        (['methods=[{method="scaffold", keep={precision="float8"}}]'], ["'float8'", "did you mean 'float"]),
        (['methods=[{method="random", draw="systematc"}]'], ["'systematc'", "did you mean 'systematic'"]),
        (['methods=[{method="fedavg", rounds=0}]'], ["rounds is 0"]),
        (["method={beta=3}"], ["unknown key 'beta'"]),
        ([_inner("allocation", "warm-up", '"random-client"')], ["'random-client'", "did you mean 'random-clients'"]),
        ([_inner("allocation", "warm-up", '{name="fair", alpha=0}')], ["'fair'", "alpha is 0"]),
        ([_inner("allocation", "warm-up", "7")], ["'warm-up'", "inner is 7"]),
        ([_inner("aggregation", "adam", '"fedvrp"')], ["'fedvrp'", "did you mean 'fedvarp'"]),
        ([_inner("aggregation", "adam", '{name="fedstale", beta=7}')], ["'fedstale'", "beta is 7"]),
        ([_inner("aggregation", "adam", '"fedvarp", lr=-1')], ["lr is -1"]),
        (["method={name='m', allocation='full', aggregation={name='adam'}}"], ["'adam'", "needs the option 'inner'"]),
        (["tasks.digits.optimiser=adma"], ["unknown optimiser 'adma': did you mean 'adam'?"]),
        (["tasks.digits.optimiser={name='sgd',momentun=0.9}"], ["'momentun'", "did you mean 'momentum'?"]),
        (["tasks.digits.lr_steps=cosin"], ["unknown schedule 'cosin': did you mean 'cosine'?"]),
        (['tasks.digits.lr={name="decai", beta=1, gamma=1}'], ["unknown schedule 'decai'", "did you mean 'decay'"]),
        (['tasks.digits.batch_size={name="growing", scale=1, step={name="frame"}}'], ["unknown schedule 'frame'"]),
        (["federation.departures=[3]"], ["1 departures for 6 clients"]),
    ],
)
def test_mistakes_in_meaning_are_named_when_the_experiment_is_built(small, settings, words):
    with refused(*words):
        config.read(small, settings).experiment().federation_of(0)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("optimiser=adma", "unknown optimiser 'adma': did you mean 'adam'?"),
        ("optimiser={name='adam', betta=1}", "optimiser 'adam': unknown option 'betta': did you mean 'beta2'?"),
        ("model=logistc", "unknown model 'logistc': did you mean 'logistic'?"),
        ("loss=crossentropy", "unknown loss 'crossentropy': did you mean 'cross_entropy'?"),
        ("metric=accurate", "unknown metric 'accurate': did you mean 'accuracy'?"),
        ("metrics=['mcro_f1']", "unknown metric 'mcro_f1': did you mean 'macro_f1'?"),
        ("data=digit", "unknown data 'digit': did you mean 'digits'?"),
        ("lr_steps=cosin", "unknown schedule 'cosin': did you mean 'cosine'?"),
        ("augment=flp", "unknown augmentation 'flp': did you mean 'flip'?"),
        ("partition=lables", "unknown partition 'lables': did you mean 'labels'?"),
        ("epochs=0", "epochs is 0"),
    ],
)
def test_what_is_named_wrongly_is_named_with_its_file_and_task(small, setting, problem):
    with pytest.raises(UserError) as caught:
        config.read(small, [f"tasks.digits.{setting}"]).experiment().federation_of(0)
    assert str(caught.value).startswith(f"{small}: task 'digits': {problem}")
    key, _, value = setting.partition("=")
    with refused("sweep, ", f": {small}: task 'digits': {problem}"):
        mmfl.sweep(small, {f"tasks.digits.{key}": [config.read_value(value)]})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"rounds = ", ["not valid TOML"]),
        (b"\xff\xfe", ["cannot be read"]),
        (b"[[tasks]]\nname = 'x'", ["'tasks.x.data' is missing"]),
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


def test_the_federation_of_a_seed_is_partitioned_once(tmp_path, monkeypatch, answer):
    seeds, divide = [], Federation._divide
    monkeypatch.setattr(Federation, "_divide", lambda self, rules: seeds.append(self.seed) or divide(self, rules))
    code, _, errors = answer("run", "quadratic", "--rounds", "1", "--seeds", "2", "--out", str(tmp_path / "run"))
    assert (code, errors) == (0, "")
    assert seeds == [0, 1]


def test_mistakes_in_the_users_own_module_are_named_with_their_line(small):
    own = "import torch\n\n\ndef load():\n    return open('nothing-here.npy')\n\n\nmodel = torch.nn.Linear(64, 10)\n"
    (small.parent / "mistaken.py").write_text(own)
    (small.parent / "unfinished.py").write_text("def load(:\n")
    for setting, words in {
        "tasks.digits.data=mistaken.load": ["data 'mistaken.load' fails: FileNotFoundError", "(mistaken.py, line 5)"],
        "tasks.digits.data=unfinished.load": ["data 'unfinished.load': cannot import", "unfinished.py"],
        "tasks.digits.model=mistaken.model": ["model 'mistaken.model' is an instance of Linear"],
        "stop.target={digit=0.9}": ["stop: target names the task 'digit'", "did you mean 'digits'"],
    }.items():
        with refused(*words):
            config.read(small, [setting]).experiment()


def test_the_default_method_is_the_same_in_every_way_to_start_a_run():
    default = inspect.signature(mmfl.train).parameters["method"].default
    assert default == "forecast"
    assert config.read(None).methods == Config().methods == [default]
    assert DeploymentSettings(clients=1).method == default
    assert default in DEFAULT_METHODS.split(",")
    swept = mmfl.sweep(mmfl.Federation([toy_task()], 4), {"rate": [0.5]}, rounds=1)
    assert swept.table()["method"].tolist() == [default]
