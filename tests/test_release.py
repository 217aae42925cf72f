"""What is released: the archives have every file of the package, and work where nothing else of the project is."""

import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import mmfl

ROOT = Path(__file__).parents[1]
BUILD = "import sys, setuptools.build_meta as build; print(build.{0}(sys.argv[1]))"


def tracked(*below: str) -> set[str]:
    """The files that the repository has below some paths."""
    listed = subprocess.run(["git", "ls-files", *below], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def build(source: Path, what: str, into: Path) -> Path:
    """A wheel or a source archive of a source tree, made by the tool that pyproject.toml names."""
    into.mkdir()
    command = [sys.executable, "-c", BUILD.format(f"build_{what}"), str(into)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """The source archive, unpacked: what is not in it cannot get into a wheel."""
    tree = tmp_path_factory.mktemp("tree")
    for name in tracked():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name)
    archive = build(tree, "sdist", tree.with_name("archives"))
    unpacked = tree.with_name("unpacked")
    with tarfile.open(archive) as files:
        files.extractall(unpacked, filter="data")
    return next(unpacked.iterdir())


@pytest.fixture(scope="module")
def wheel(source) -> Path:
    """The wheel of the source archive."""
    return build(source, "wheel", source.parent.with_name("wheels"))


@pytest.fixture(scope="module")
def installed(wheel) -> Path:
    """The programs of an environment that has the wheel, and of the rest of this one the packages that it needs."""
    place = wheel.parent.with_name("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    packages = place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "bin"


def run(program: Path, *arguments: str, cwd: Path) -> str:
    """What a program prints; it must not fail."""
    done = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_has_the_files_of_the_package_and_no_others(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.startswith(f"mmfl-{mmfl.__version__}.dist-info/")}
    assert packed == {name.removeprefix("src/") for name in tracked("src/mmfl")}


def test_the_version_of_the_archives_is_that_of_the_package(wheel):
    assert wheel.name == f"mmfl-{mmfl.__version__}-py3-none-any.whl"


def test_an_installed_wheel_runs_every_command_and_finds_its_own_files(installed, tmp_path):
    where = run(installed / "python", "-c", "import mmfl; print(mmfl.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(installed.parent)  # not the sources
    described = run(installed / "mmfl", "--help", cwd=tmp_path)
    commands = re.findall(r"^  ([a-z]+)  ", described.partition("Commands:")[2], re.MULTILINE)
    assert {"run", "compare", "deploy", "report"} <= set(commands)
    for command in commands:
        assert f"mmfl {command}" in run(installed / "mmfl", command, "--help", cwd=tmp_path)
    presets = {Path(name).stem for name in tracked("src/mmfl/runs/presets/*.toml")}
    assert presets <= set(re.findall(r"[\w-]+", run(installed / "mmfl", "datasets", cwd=tmp_path)))
    run(installed / "mmfl", "run", "--set", "rounds=2", "--out", "trained", cwd=tmp_path)
    run(installed / "mmfl", "report", "trained", "--out", "trained.html", cwd=tmp_path)
    assert "</html>" in (tmp_path / "trained.html").read_text()
    listed = run(installed / "mmfl", "reproduce", "--list", cwd=tmp_path)
    assert "table1-3tasks" in listed
