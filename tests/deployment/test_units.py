"""The units and the compose file of examples/operations: their commands exist, and systemd understands the units."""

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from pages import known_command, unknown_options

FOLDER = Path(__file__).parents[2] / "examples" / "operations"
UNITS = sorted(FOLDER.glob("*.service"))
HARDENED = {"NoNewPrivileges": "true", "ProtectSystem": "strict", "ProtectHome": "true", "CapabilityBoundingSet": ""}


def check_command(words: list[str]) -> None:
    """The command line must take these words."""
    command, rest = known_command(words)
    assert unknown_options(words) == []
    command.make_context(" ".join(words), list(rest))


def service_of(unit: Path) -> dict[str, str]:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str
    parser.read(unit)
    return dict(parser["Service"])


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_runs_a_command_that_exists_as_a_user_without_privileges(unit):
    service = service_of(unit)
    program, *words = shlex.split(service["ExecStart"])
    assert program == "/opt/mmfl/bin/mmfl"
    check_command(["mmfl", *words])
    assert service["User"] not in ("", "root")
    assert service["StateDirectory"] == unit.stem
    assert {key: service.get(key) for key in HARDENED} == HARDENED
    for started in re.findall(r"^#\s+(mmfl .+)$", unit.read_text(), re.MULTILINE):
        check_command(shlex.split(started))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_units(tmp_path):
    program = Path(sys.executable).with_name("mmfl")
    for unit in UNITS:
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/mmfl/bin/mmfl", str(program)))
    command = ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / unit.name) for unit in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    told = [line for line in done.stderr.splitlines() if "mmfl" in line]  # not of units of this machine
    assert told == []
    broken = tmp_path / UNITS[0].name
    broken.write_text(broken.read_text().replace("RestartSec=", "RestartSecs="))
    done = subprocess.run([*command[:3], str(broken)], capture_output=True, text=True, timeout=600)
    assert "RestartSecs" in done.stderr


def test_the_compose_file_runs_commands_that_exist_in_hardened_containers():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    text = (FOLDER / "compose.yaml").read_text()
    compose = yaml.safe_load(text)
    assert set(compose["services"]) == {"link", "node-0", "node-1"}
    for service in compose["services"].values():
        check_command(service["command"])
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert int(service["user"]) > 0
        assert ("--metrics-port", "9100") in pairwise(service["command"])  # which its health check asks
        named = [volume.split(":")[0] for volume in service["volumes"] if not volume.startswith(".")]
        assert set(named) <= set(compose["volumes"])
    assert compose["services"]["link"]["ports"] == ["8000:8000"]  # not the control port
    (started,) = re.findall(r"exec link (mmfl .+)$", text, re.MULTILINE)
    check_command(shlex.split(started))
