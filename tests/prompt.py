"""The command in a process of its own, as a shell starts it, but without waiting for imports each time.

A helper imports what takes long and forks itself for every command: whatever a command imports, changes or breaks stays
in its own process. Of mmfl it imports nothing that looks at the terminal or the environment.
"""

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path

PROGRAM = "from mmfl.cli import main; main()"
SECONDS = 600
GROUP = """
import os, socket, sys
def for_each_of(processes):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    size = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    children = []
    for rank in range(processes):
        if not (child := os.fork()):
            os.environ.update(size, RANK=str(rank), LOCAL_RANK=str(rank))
            return
        children.append(child)
    sys.exit(max(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) for child in children))
"""


def mmfl(
    *arguments: str, cwd: Path, program: str = PROGRAM, env: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess:
    """What became of the command with these arguments."""
    with started(*arguments, cwd=cwd, program=program, env=env) as (_, end):
        return end()


def together(processes: int, *arguments: str, cwd: Path, program: str = PROGRAM) -> subprocess.CompletedProcess:
    """The command in several processes of one group, as torchrun starts them."""
    return mmfl(*arguments, cwd=cwd, program=f"{GROUP}for_each_of({processes})\n{program}")


@contextmanager
def started(*arguments: str, cwd: Path, program: str = PROGRAM, env: Mapping[str, str] = os.environ) -> Iterator[tuple]:
    """While the command runs: its process number, and a function that waits until it has ended."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("out", "err")]
        told = {"program": program, "arguments": arguments, "cwd": str(cwd), "env": dict(env)}
        print(json.dumps({**told, "files": list(map(str, files))}), file=helper().stdin, flush=True)
        number, code = int(helper().stdout.readline()), []

        def end() -> subprocess.CompletedProcess:
            code.append(int(helper().stdout.readline()))
            return subprocess.CompletedProcess(list(arguments), code[0], *(file.read_text() for file in files))

        try:
            yield number, end
        finally:
            if not code:
                os.kill(number, signal.SIGKILL)
                end()


@cache
def helper() -> subprocess.Popen:
    """The process that is forked; it ends with its input."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, __file__], text=True, **pipes)
    atexit.register(process.communicate)
    return process


def serve() -> None:
    """Forks for every line of input, and says the new process's number and then how it ended."""
    for name in ("torch", "torch.func", "pandas", "sklearn.datasets", "scipy.stats", "matplotlib.figure"):
        import_module(name)
    for name in ("pydantic.main", "typer", "rich.progress", "rich.logging", "safetensors.torch", "tomli_w"):
        import_module(name)
    for name in ("plotly.graph_objects", "mmfl.public", "mmfl.runs.config", "mmfl.report.page", "mmfl.report.display"):
        import_module(name)
    gc.freeze()  # or every process would look through all of it before it ends
    for line in sys.stdin:
        if not (number := os.fork()):
            become(**json.loads(line))
        print(number, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)


def become(program: str, arguments: Sequence[str], cwd: str, env: Mapping[str, str], files: Sequence[str]) -> None:
    """Makes this process what `python -c program arguments` would be, but that it leaves its memory to the system: to
    free it module by module takes longer than most commands."""
    signal.alarm(SECONDS)
    for place, name in enumerate([os.devnull, *files]):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), place)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv, sys.path[0] = ["-c", *arguments], ""
    code = 1
    try:
        exec(program, {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
