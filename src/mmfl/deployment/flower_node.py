"""Flower's programs of a node, in processes that share what they import. A program that needs no other module of mmfl.

    python flower_node.py FOLDER flower-supernode OPTION...

Flower starts a process for every message (`flwr-clientapp`), which takes a second of processor time for its imports,
and one that waits for messages (`flower-superexec`). So this program imports Flower once. It then runs the SuperNode,
and a process beside it forks the other programs from there: FOLDER, which comes first in PATH, holds a script by the
name of each of them, which asks for it. Only Flower's commands and their options are used.
"""

import contextlib
import gc
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path

FORKED = ("flower-superexec", "flwr-clientapp")
_SOCKET = "programs"  # in FOLDER
_SCRIPT = """#!{python} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({path!r})
    line.sendall(json.dumps([{name!r}, *sys.argv[1:]]).encode())
"""
_SECONDS_BETWEEN_LOOKS = 1.0  # for the end of the SuperNode
_MAX_BYTES = 1 << 16  # of a command line

Programs = Mapping[str, Callable[[], object]]
"""Flower's programs by name, each a function that reads `sys.argv`."""


def load(*names: str) -> Programs:
    """Imports Flower's programs."""
    found = {each.name: each for each in entry_points(group="console_scripts") if each.name in names}
    return {name: found[name].load() for name in names}


def listen(folder: Path) -> socket.socket:
    """Opens the socket in a folder, and writes the scripts that ask there for a program."""
    path = folder / _SOCKET
    path.unlink(missing_ok=True)
    for name in FORKED:
        (folder / name).write_text(_SCRIPT.format(python=sys.executable, path=str(path), name=name))
        (folder / name).chmod(stat.S_IRWXU)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    return listener


def fork_programs(listener: socket.socket, programs: Programs, parent: int) -> None:
    """Runs each program that is asked for in a process of its own, until the parent has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    listener.settimeout(_SECONDS_BETWEEN_LOOKS)
    while os.getppid() == parent:
        with contextlib.suppress(OSError, ValueError):
            line, _ = listener.accept()
            with line:
                line.settimeout(_SECONDS_BETWEEN_LOOKS)
                command = json.loads(line.makefile("rb").read(_MAX_BYTES))
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                run(programs, command)


def run(programs: Programs, command: list[str]) -> None:
    """Runs a program with its options; it ends this process, or returns."""
    sys.argv = command
    programs[command[0]]()


def main() -> None:
    """Runs a SuperNode, with the other programs beside it."""
    folder, *command = sys.argv[1:]
    programs = load(command[0], *FORKED)
    listener, parent = listen(Path(folder)), os.getpid()
    gc.freeze()  # what is shared is not written to
    if os.fork() == 0:
        fork_programs(listener, programs, parent)
        return
    listener.close()
    run(programs, command)


if __name__ == "__main__":
    main()
