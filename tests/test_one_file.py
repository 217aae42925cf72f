"""What CONTRIBUTING says: a new part is one file and one entry in a table, and then it works everywhere."""

import os
import re
import shutil
from pathlib import Path

import prompt
from pages import ROOT, blocks, text_of

EXPERIMENT = """
rounds = 3
rate = 0.5
[[methods]]
name = "new"
allocation = "largest-first"
local = "sign"
aggregation = "smoothed"
[federation]
clients = 6
[[tasks]]
name = "rings"
data = "rings"
model = { name = "perceptron", inputs = 2, classes = 3 }
"""


def entry(package: Path, table: str, place: str, name: str, module: str, thing: str) -> None:
    """Adds an import and an entry to a table, as a contributor does."""
    path = package / place
    text, imported = path.read_text(), f"from {module} import {thing}\n"
    first = re.search(r"^from mmfl", text, re.MULTILINE).start()
    text = text[:first] + imported + text[first:]
    text, added = re.subn(rf"^({table}: .* = {{\n)", rf'\1    "{name}": {thing},\n', text, flags=re.MULTILINE)
    assert added == 1, f"{table} is not in {place}"
    path.write_text(text)


def test_a_new_part_is_one_file_and_one_entry_in_the_table_of_its_room(tmp_path):
    package = tmp_path / "src" / "mmfl"
    shutil.copytree(ROOT / "src" / "mmfl", package, ignore=shutil.ignore_patterns("__pycache__"))
    rows = re.findall(
        r"^\| [\w ]+ \| `src/mmfl/(.*)` \| `(\w+)` of `src/mmfl/(.*)` \|$", text_of("CONTRIBUTING.md"), re.M
    )
    files = {
        path: block.text
        for block in blocks("CONTRIBUTING.md", "python")
        for path in re.findall("^# src/mmfl/(.*)", block.text)
    }
    assert [path for path, *_ in rows] == list(files)
    assert len(rows) == 5
    for path, table, place in rows:
        assert not (package / path).exists()
        (package / path).write_text(files[path])
        name = Path(path).stem.replace("_", "-")
        thing = re.findall(r"^(?:class|def) (\w+)", files[path], re.M)[-1]
        entry(package, table, place, name, "mmfl." + path.removesuffix(".py").replace("/", "."), thing)
    (tmp_path / "new.toml").write_text(EXPERIMENT)
    env = {**os.environ, "PYTHONPATH": str(package.parent)}
    program = f"""
import sys
for name in [name for name in sys.modules if name.partition(".")[0] == "mmfl"]:
    del sys.modules[name]
sys.path.insert(0, {str(package.parent)!r})
{prompt.PROGRAM}"""

    def mmfl(*arguments: str) -> str:
        done = prompt.mmfl(*arguments, cwd=tmp_path, program=program, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    mmfl("run", "new.toml", "--out", "run", "--quiet")
    mmfl("report", "run", "--out", "report.html")
    assert "Active clients" in (tmp_path / "report.html").read_text()
    assert "rings" in mmfl("datasets")
    assert "stored_bytes" in (tmp_path / "run" / "metrics.jsonl").read_text()
