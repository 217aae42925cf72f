"""The watchdog: kills what is left of a deployment when its owner has ended. A program that needs no other module.

Arguments: a variable that every process of the deployment has in its environment, as `NAME=value`, and the folder to
remove. Standard input: the process ids, one per line, and with a minus those that have ended, whose numbers others may
have now. When the input ends, because the owner closed it or died, all processes that still run are killed. Flower
starts some processes in sessions of their own, so killing groups is not enough.
"""

import contextlib
import os
import shutil
import signal
import sys
import time


def find_processes(variable: bytes) -> list[int]:
    """The processes that have the variable in their environment (on Linux; none elsewhere)."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                    if variable in file.read().split(b"\0"):
                        found.append(int(name))
    return found


def main() -> None:
    """Waits for the end of the input, then kills all processes and removes the folder."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    variable, folder = sys.argv[1:]
    groups: set[int] = set()
    for number in map(int, sys.stdin):
        groups = groups | {number} if number > 0 else groups - {-number}
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    while left := find_processes(variable.encode()):
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
