"""What the server tells: over HTTP, of runs in every condition, and to nobody from elsewhere."""

import base64
import json
import os
import shutil
from pathlib import Path

import pytest
from served import Site, make_deployment, make_run, serving


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_run(folder / "random")
    make_run(folder / "sweeps" / "full", "full")
    make_run(folder / "other", tasks=("c",))
    return folder


@pytest.fixture
def folder(tmp_path, made) -> Path:
    shutil.copytree(made, tmp_path / "runs")
    return tmp_path / "runs"


@pytest.fixture
def site(folder):
    with serving(folder) as site:
        yield site


def names(site: Site, *runs: str) -> list[str]:
    """The lines of a figure."""
    figure = site.get("figure", *runs, name="accuracy")
    return sorted({trace["name"] for trace in figure["plot"]["data"] if trace.get("showlegend")})


def test_every_run_below_the_folder_is_listed_with_what_it_is_and_how_far_it_got(site):
    listed = {run["id"]: run for run in site.get("runs")["runs"]}
    assert set(listed) == {"random", "sweeps/full", "other"}
    run = listed["sweeps/full"]
    assert (run["condition"], run["round"], run["rounds"]) == ("finished", 4, 4)
    assert (run["methods"], run["tasks"], run["seeds"], run["clients"]) == (["full"], ["a", "b"], 1, 8)
    assert 0 < run["means"]["full"] < 1


def test_a_run_itself_can_be_served(folder):
    with serving(folder / "random") as site:
        assert [run["id"] for run in site.get("runs")["runs"]] == ["random"]


def test_a_folder_that_is_no_run_and_hidden_ones_are_not_listed(folder, site):
    for name in ("project", ".hidden"):
        (folder / name).mkdir()
        (folder / name / "config.toml").write_text("rounds = 3")
    (folder / ".hidden" / "metrics.jsonl").touch()
    assert len(site.get("runs")["runs"]) == 3


def test_runs_with_the_same_tasks_are_compared_and_others_left_out_with_the_reason(site):
    several = ("random", "sweeps/full", "other")
    assert names(site, *several) == ["full", "random"]
    told = site.get("figures", *several)
    assert told["notes"] == ["other is left out: its tasks (c) are not those of random (a, b)."]
    shown = [figure for name in told["names"] if (figure := site.get("figure", *several, name=name))]
    assert len(shown) > 4
    assert all(figure["plot"]["data"] for figure in shown)


def test_runs_that_differ_in_more_than_methods_and_seeds_come_with_a_note(folder, site):
    make_run(folder / "short", "mmfl-lvr", rounds=2)
    (note,) = site.get("figures", "random", "short")["notes"]
    assert note.startswith("These runs differ in more than methods and seeds")
    assert note.endswith(": rounds trained: 4 (random), 2 (short).")
    assert site.get("table", "random", "short")["notes"] == [note]
    assert site.get("figures", "random", "sweeps/full")["notes"] == []


def test_a_method_in_several_runs_is_named_with_its_run(folder, site):
    shutil.copytree(folder / "random", folder / "twin")
    assert names(site, "random", "twin") == ["random (random)", "random (twin)"]


def test_seeds_of_one_configuration_that_are_in_several_runs_are_one_method(folder, site):
    make_run(folder / "seed-1", seed=1)
    assert names(site, "random", "seed-1") == ["random"]


def test_unchanged_answers_are_not_sent_again_and_changed_ones_are(folder, site):
    site.get("runs")
    for path in ("/", "/plotly.js", "/api/runs", "/api/log?run=random", "/api/figure?run=random&name=loss"):
        reply, body = site.ask(path)
        mark = reply.headers["ETag"]
        assert body
        again, nothing = site.ask(path, **{"If-None-Match": mark})
        assert (again.status, nothing) == (304, b"")
    with (folder / "random" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(last_record(folder / "random") | {"round": 5}) + "\n")
    reply, _ = site.ask("/api/figure?run=random&name=loss", **{"If-None-Match": mark})
    assert reply.status == 200


def tell(run: Path, **told) -> None:
    """Changes what the state of a run says."""
    state = run / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | told))


def last_record(run: Path) -> dict:
    return json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])


def rounds_shown(site: Site, run: str) -> int:
    """How many rounds a figure has seen: the points of a curve."""
    figure = site.get("figure", run, name="accuracy")
    return max(len(base64.b64decode(trace["x"]["bdata"])) // 4 for trace in figure["plot"]["data"])


def test_a_half_written_last_line_waits_until_it_is_whole(folder, site):
    metrics = folder / "random" / "metrics.jsonl"
    line = json.dumps(last_record(folder / "random") | {"round": 5})
    assert rounds_shown(site, "random") == 4
    for text, rounds in ((line[:50], 4), (line[50:], 4), ("\n", 5)):
        with metrics.open("a") as file:
            file.write(text)
        assert site.run("random")["round"] == rounds
        assert rounds_shown(site, "random") == rounds


def test_a_metrics_file_that_shrinks_or_is_written_anew_is_read_anew(folder, site):
    metrics = folder / "random" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    assert rounds_shown(site, "random") == 4
    tell(folder / "random", condition="running", host="elsewhere")
    metrics.write_text("".join(lines[:2]))
    assert (site.run("random")["round"], rounds_shown(site, "random")) == (2, 2)
    longer = [json.dumps(json.loads(lines[0]) | {"round": t, "seconds": 9.0}) + "\n" for t in range(1, 8)]
    (folder / "new").write_text("".join(longer))
    os.replace(folder / "new", metrics)
    assert (site.run("random")["round"], rounds_shown(site, "random")) == (7, 7)
    metrics.unlink()
    assert site.run("random")["round"] == 0
    assert site.get("figures", "random")["notes"] == ["random has no finished round yet."]


def test_lines_that_are_no_records_are_left_out_with_a_note(folder, site):
    with (folder / "random" / "metrics.jsonl").open("a") as file:
        file.write('nonsense\n[1]\n{"round": "x"}\n\n')
    assert (site.run("random")["round"], site.run("random")["condition"]) == (4, "finished")
    assert rounds_shown(site, "random") == 4
    assert site.get("figures", "random")["notes"] == ["random: lines 5, 6, 7 are not records, and left out."]


def test_a_damaged_run_is_left_out_with_the_reason_and_harms_no_other(folder, site):
    metrics = folder / "random" / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines(keepends=True)
    assert rounds_shown(site, "random") == 4
    metrics.write_bytes(b"".join([lines[0], b"nonsense\n", *lines[2:]]))
    damage = "metrics.jsonl is damaged: round 2 is missing (line 2 is not a record)"
    assert (site.run("random")["condition"], site.run("random")["reason"]) == ("unreadable", damage)
    for question in ("figures", "table"):
        assert site.get(question, "random", "sweeps/full")["notes"] == [f"random is left out: its {damage}."]
    assert names(site, "random", "sweeps/full") == ["full"]


def test_damage_that_only_shows_when_a_record_is_parsed_leaves_the_run_out(folder, site):
    metrics = folder / "random" / "metrics.jsonl"
    text = metrics.read_text()
    metrics.write_text(text.replace('"cost": {', '"cost": {{', 1))
    note = "random is left out: its metrics.jsonl is damaged: round 1 is missing (line 1 is not a record)."
    assert site.get("figures", "random")["notes"] == [note]


def test_the_metric_is_of_the_last_round_that_was_tested(folder, site):
    record = last_record(folder / "random")
    untested = [json.dumps(record | {"round": t, "mean": None, "worst": None, "pad": "x" * 2000}) for t in range(5, 90)]
    with (folder / "random" / "metrics.jsonl").open("a") as file:
        file.write("\n".join(untested) + "\n")
    run = site.run("random")
    assert (run["round"], run["means"]["random"]) == (89, pytest.approx(record["mean"]))


def test_runs_without_a_state_are_judged_by_their_rounds_and_deployments_by_how_they_say_they_ended(folder, site):
    run = folder / "random"
    (run / "state.json").unlink()
    assert (site.run("random")["condition"], site.run("random")["rounds"]) == ("finished", 4)
    (run / "config.toml").write_text((run / "config.toml").read_text().replace("rounds = 4", "rounds = 9"))
    assert site.run("random")["condition"] == "stopped"
    (run / "ended.json").write_text('{"state": "failed", "message": "no nodes", "run": 1}')
    assert (site.run("random")["condition"], site.run("random")["reason"]) == ("failed", "no nodes")


@pytest.mark.parametrize("text", ["", "settings = 3", "rounds = [", "tasks = 1\nseeds = 'x'\nrounds = 'y'"])
def test_a_configuration_that_is_none_does_not_hide_the_run(folder, site, text):
    (folder / "random" / "config.toml").write_text(text)
    run = site.run("random")
    assert (run["round"], run["condition"]) == (4, "unreadable")
    assert run["reason"] == "config.toml is not that of a run"
    assert site.get("config", "random") == [{"id": "random", "text": text}]


def test_the_log_has_the_events_of_nodes_in_the_order_of_time(folder, site):
    began, *_ = (folder / "random" / "log.txt").read_text().splitlines()
    event = {"time": 1e9, "round": 2, "kind": "timeout", "node": "7", "client": "3", "detail": "no <answer>"}
    (folder / "random" / "events.jsonl").write_text(json.dumps(event) + '\n{"half')
    (log,) = site.get("log", "random")
    assert log["lines"][0].endswith("round 2, node 7, client 3: timeout: no <answer>")
    assert log["lines"][1] == began
    assert log["lines"][-1].endswith("finished: 4 rounds")


def test_the_live_state_is_told_of_deployments_only_and_damage_hides_no_events(folder, site):
    make_deployment(folder / "real")
    (told,) = site.get("deployment", "real", "random")
    assert (told["id"], told["running"], told["live"]["messages_out"]) == ("real", True, 1)
    assert [event["kind"] for event in told["events"]] == ["joined", "joined", "late"]
    assert {run["id"]: run["deployed"] for run in site.get("runs")["runs"]}["real"]
    (folder / "real" / "live.json").write_text("{")
    assert site.get("deployment", "real")[0]["live"] is None


def test_nothing_but_the_runs_that_were_found_can_be_reached(folder, site):
    shutil.copytree(folder / "random", folder.parent / "secret")
    for path in (
        "/api/config?run=../secret",
        "/api/log?run=..%2F..%2Fetc",
        "/api/config?run=%2Fetc",
        "/api/figures?run=random%00",
        "/api/figure?run=random&name=acuracy",
        "/api/table?run=nowhere",
        "/api/nothing",
        "/static/app.js",
        "/../pyproject.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
    ):
        reply, body = site.ask(path)
        assert (reply.status, set(json.loads(body))) == (404, {"error"}), path


def test_only_names_of_this_machine_are_served_whatever_the_port(site):
    for host in ("localhost:1", "127.0.0.1", "localhost"):
        assert site.ask("/api/runs", host=host)[0].status == 200
    for host in ("example.org", "127.0.0.1.example.org:80", "localhost.example.org", " ", "[", "10.0.0.1"):
        reply, body = site.ask("/api/runs", host=host)
        assert (reply.status, b"random" in body) == (403, False), host


def test_only_get_is_answered(site):
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        reply, _ = site.ask("/api/runs", method=method)
        assert (reply.status, reply.headers["Allow"]) == (405, "GET"), method


def test_the_page_may_load_nothing_from_elsewhere(site):
    reply, body = site.ask("/")
    assert "default-src 'self'" in reply.headers["Content-Security-Policy"]
    assert b"http" not in body


def test_metrics_by_client_are_shown_and_a_damaged_file_of_theirs_is_noted(folder, site):
    figure = {"name": "client_distribution"}
    assert site.get("figure", "random", **figure) is None
    tested = {"round": 4, "clients": [0, 1], "examples": [5, 6], "values": [0.2, 0.7]}
    line = {"method": "random", "seed": 0, "tasks": {"a": tested}}
    (folder / "random" / "tested.jsonl").write_text(json.dumps(line) + "\n")
    shown = site.get("figure", "random", **figure)
    assert shown["title"] == "Distribution over clients"
    (folder / "random" / "tested.jsonl").write_text("{")
    assert site.get("figure", "random", **figure) is None
    assert any("tested.jsonl cannot be read" in note for note in site.get("figures", "random")["notes"])
