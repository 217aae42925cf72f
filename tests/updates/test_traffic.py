"""What processes add up in a round is what `benchmarks/estimate.py` reckons with."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
from traffic import CLIENTS

import prompt

HERE = Path(__file__).parent
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def estimate():
    spec = importlib.util.spec_from_file_location("estimate", HERE.parents[1] / "benchmarks" / "estimate.py")
    module = sys.modules["estimate"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["estimate"]


def test_four_processes_add_up_as_many_bytes_as_estimated_for_methods_of_every_kind(estimate, tmp_path):
    program = f"import sys; sys.path.insert(0, {str(HERE)!r}); from traffic import main; main()"
    done = prompt.together(4, "found.json", ",".join(estimate.METHODS), cwd=tmp_path, program=program)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert list(found) == list(estimate.METHODS)
    for name, (trainings, parameters, size, sums) in found.items():
        method = estimate.METHODS[name]
        assert size == estimate.round_bytes(method, CLIENTS, parameters, trainings), name
        assert sums == estimate.round_sums(method, len(parameters)), name
