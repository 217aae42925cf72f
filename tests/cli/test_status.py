"""`mmfl status`: how runs are doing, on a terminal and as JSON."""

import json

import pytest

import mmfl
from conftest import toy_task
from mmfl.runs.live import LiveStateWriter


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "try"
    mmfl.train(mmfl.Federation([toy_task("a")], clients=3), "random", 2, 0.5, directory=path, device="cpu")
    return path


@pytest.fixture
def deployed(tmp_path):
    """A run directory as the server of a deployment leaves it, in the middle of a round."""
    settings = 'source = "deployment"\n[settings]\nmethod = "random"\nrounds = 9\n'
    (tmp_path / "config.toml").write_text(settings)
    event = {"time": 1.0, "round": 2, "kind": "late", "node": "8"}
    (tmp_path / "events.jsonl").write_text(json.dumps(event) + "\n")
    writer = LiveStateWriter(tmp_path)
    writer.known |= {"rounds": 9, "round": 3}
    writer.begin_stage("training", 2)
    writer.update({7: ("7", [0, 1]), 8: ("8", [4])}, {8}, 1, clients=5, connected=2)
    return tmp_path


def test_a_simulation_says_how_far_it_is(simulated, answer):
    code, out, _ = answer("status", str(simulated))
    assert code == 0
    assert "finished, 2 of 2 rounds done" in out
    code, out, _ = answer("status", str(simulated), "--watch")
    assert (code, "finished" in out) == (0, True)


def test_a_deployment_says_who_is_late(deployed, answer):
    code, out, err = answer("status", str(deployed))
    assert code == 0, err
    assert any("8" in line and "late" in line for line in out.splitlines())
    assert "2 of 5 clients connected" in out
    assert "round 2, node 8: late" in out


def test_json_has_what_is_documented(deployed, simulated, answer):
    told = json.loads(answer("status", str(deployed), "--json")[1])
    assert {"run", "state", "reason", "round", "rounds", "mean", "deployment", "events"} == set(told)
    assert (told["deployment"]["messages_out"], told["deployment"]["nodes"][0]["is_late"]) == (1, True)
    assert told["events"][0]["kind"] == "late"
    assert json.loads(answer("status", str(simulated), "--json")[1])["deployment"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "either a run directory, or --server"),
        (["nowhere"], "'nowhere' is not a run directory"),
        (["nowhere", "--server", "127.0.0.1:1"], "either a run directory, or --server"),
        (["nowhere", "--watch", "--json"], "--watch goes with a run directory"),
        (["--server", "here"], "address 'here'"),
        (["--server", "127.0.0.1:1", "--root-certificates", "none.crt"], "--root-certificates 'none.crt'"),
    ],
)
def test_bad_input_is_refused_in_one_line(answer, arguments, words):
    code, out, err = answer("status", *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert words in err
