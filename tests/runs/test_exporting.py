"""Models as files: state dicts and models with their operations, the same outputs, for inputs of any structure."""

import logging

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import mmfl
from conftest import refused


class TwoInputs(nn.Module):
    """A number and a category."""

    def __init__(self) -> None:
        super().__init__()
        self.kind, self.layer = nn.Embedding(3, 2), nn.Linear(6, 2)

    def forward(self, numbers: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.cat([numbers, self.kind(kind)], dim=1))


def two_inputs() -> mmfl.data.Dataset:
    generator = torch.Generator().manual_seed(0)
    numbers, kind = torch.randn(60, 4, generator=generator), torch.randint(0, 3, (60,), generator=generator)
    return mmfl.data.from_arrays({"numbers": numbers, "kind": kind}, (numbers[:, 0] > 0).long())


@pytest.fixture(scope="module")
def run() -> mmfl.Run:
    tasks = [
        mmfl.Task("digits", lambda: mmfl.models.SmallCNN(8, padding=1), mmfl.data.digits()),
        mmfl.Task("table", TwoInputs, two_inputs()),
    ]
    return mmfl.train(mmfl.Federation(tasks, clients=6), "full", rounds=1, keep_best=True, device="cpu")


def outputs(model, data):
    with torch.no_grad():
        return model(**data.x_test) if isinstance(data.x_test, dict) else model(data.x_test)


@pytest.mark.parametrize("task", ["digits", "table"])
@pytest.mark.parametrize("ending", [".safetensors", ".pt", ".torchscript"])
def test_an_exported_model_gives_the_same_outputs_for_any_number_of_examples(run, task, ending, tmp_path):
    path, module = tmp_path / f"model{ending}", run.module(task)
    run.export(task, path, weights="best")
    if ending == ".torchscript":
        other = torch.jit.load(path)
    else:
        other = run.federation.tasks[run.tasks.index(task)].model()
        other.load_state_dict(load_file(path) if ending == ".safetensors" else torch.load(path, weights_only=True))
    data = run.federation.tasks[run.tasks.index(task)].data
    torch.testing.assert_close(outputs(other, data), outputs(module, data))


@pytest.mark.parametrize("task", ["digits", "table"])
def test_an_onnx_model_gives_the_same_outputs_and_torch_says_nothing(run, task, tmp_path, caplog, monkeypatch):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.setattr(logging.getLogger("torch.onnx"), "handlers", [caplog.handler])
    run.export(task, tmp_path / "model.onnx")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    data = run.federation.tasks[run.tasks.index(task)].data
    given = data.x_test if isinstance(data.x_test, dict) else {session.get_inputs()[0].name: data.x_test}
    (found,) = session.run(None, {name: value.numpy() for name, value in given.items()})
    torch.testing.assert_close(torch.from_numpy(found), outputs(run.module(task), data), rtol=1e-4, atol=1e-5)


class FixedBatch(nn.Module):
    """A model whose trace would work for one number of examples only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(8, 10, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.reshape(len(x), 8, 8), torch.zeros(1, len(x), 10))[0][:, -1]


def test_a_trace_that_fits_only_its_own_examples_is_refused(tmp_path):
    task = mmfl.Task("a", FixedBatch, mmfl.data.digits())
    run = mmfl.train(mmfl.Federation([task], clients=4), "full", rounds=1, device="cpu")
    with refused("torch cannot express this model"):
        run.export("a", tmp_path / "model.torchscript")
    assert not (tmp_path / "model.torchscript").exists()


@pytest.mark.parametrize(
    ("task", "name", "words"),
    [
        ("digits", "model.h5", ["unknown ending '.h5'", ".safetensors"]),
        ("digits", "nowhere/model.pt", ["the folder", "does not exist"]),
        ("digits", "folder.pt", ["this is a folder"]),
        ("numbers", "model.pt", ["unknown task 'numbers'", "digits"]),
    ],
)
def test_what_cannot_be_exported_is_said_in_a_line(run, task, name, words, tmp_path):
    (tmp_path / "folder.pt").mkdir()
    with refused(*words):
        run.export(task, tmp_path / name)


def test_one_run_of_a_comparison_is_found_by_method_and_seed():
    task = mmfl.Task("digits", mmfl.models.LogisticRegression, mmfl.data.digits())
    pool = mmfl.Federation([task], clients=6)
    single = mmfl.compare(pool, ["random", "full"], rounds=1, rate=0.5)
    assert single["full"].method == "full"
    several = mmfl.compare(pool, ["random"], rounds=1, rate=0.5, seeds=[2, 5])
    assert several["random", 5].seed == 5
    with refused("runs of the seeds 2, 5"):
        several["random"]
    with refused("runs of the seeds 2, 5"):
        several["random", 3]
    with refused("no runs of method 'rand'", "random"):
        several["rand"]
    with refused("the key is 0"):
        several[0]
