"""Runs the code of README, documentation and examples, on a GPU where there is one: python tests/run_pages.py

The tests do the same on a CPU. A line for each block says whether it ran; one that did not ends its page, and the exit
code is 1. What cannot run here is listed as left out.
"""

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from mmfl.engine.device import choose_device
from pages import PAGES, ROOT, blocks, check, follow

# What each of these needs beside the package's own dependencies.
NEEDS = {
    "docs/privacy.md": ["dp_accounting"],
    "docs/report.md": ["plotly"],
    "docs/trackers.md": ["tensorboard"],
    "docs/tutorials/deploying.md": ["flwr"],
}
NO_SCRIPT = {
    "examples/deployed.py": "is for a deployment",
    "examples/own_module.py": "is run with own_module.toml",
}


def run_example(example: str, folder: Path) -> Iterator[str]:
    """A script in its short form, or a few rounds of a configuration."""
    yield "in short form"
    if example.endswith(".toml"):
        check(f"mmfl run {ROOT / example} --rounds 2 --seeds 1 --out {folder / 'run'}", "", folder)
    else:
        check(f"python {ROOT / example} --quick", "", folder)


def run(name: str) -> bool:
    """Runs a page or an example and prints a line for each of its blocks; whether all of it ran."""
    steps, what, begun = run_example if name.startswith("examples/") else follow, "", time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        try:
            for following in steps(name, Path(folder)):
                if what:
                    print(f"{name}, {what}: ran in {time.perf_counter() - begun:.1f} s", flush=True)
                what, begun = following, time.perf_counter()
        except (Exception, SystemExit):
            print(f"{name}, {what}: FAILED\n{traceback.format_exc()}", flush=True)
            return False
    print(f"{name}, {what}: ran in {time.perf_counter() - begun:.1f} s", flush=True)
    return True


def everything() -> list[str]:
    """All pages with Python in them, and all examples."""
    examples = sorted(f"examples/{path.name}" for path in (ROOT / "examples").glob("*.*"))
    return [*(page for page in PAGES if blocks(page, "python")), *examples]


def reason_to_leave_out(name: str) -> str:
    """Why a page or an example cannot run here; empty if it can."""
    lacking = [module for module in NEEDS.get(name, []) if find_spec(module) is None]
    return f"needs {' and '.join(lacking)}" if lacking else NO_SCRIPT.get(name, "")


def main(arguments: list[str] | None = None) -> int:
    """Runs everything, or what is named; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="pages and examples, such as docs/start.md; all if there are none")
    parser.add_argument("--device", help="where to train, such as cpu or cuda:1; otherwise a GPU if there is one")
    options = parser.parse_args(arguments)
    if options.device:
        os.environ["MMFL_DEVICE"] = options.device
    device = choose_device(None)
    names = options.names or everything()
    left_out = {name: reason for name in names if (reason := reason_to_leave_out(name))}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["MMFL_CACHE"] = cache
        failed = [name for name in names if name not in left_out and not run(name)]
    for name, reason in left_out.items():
        print(f"{name}: left out, {reason}")
    print(f"on {device}: {len(failed)} failed, {len(left_out)} left out", *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
