"""Ends what is left of a deployment when its owner is gone: run by path, on its own, with the standard library only.

Arguments: a mark that every process of the deployment carries in its environment, and the folder to remove. Standard
input: the numbers of its processes, a line each. When that input ends, because the owner closed it or died, whatever
still runs is killed. Flower puts some of its processes into sessions of their own, so groups alone would not do.
"""

import contextlib
import os
import shutil
import signal
import sys
import time


def marked(mark: bytes) -> list[int]:
    """The processes that carry the mark, where the system tells (Linux)."""
    found = []
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as file:
                    if mark in file.read().split(b"\0"):
                        found.append(int(name))
    return found


def main() -> None:
    """Waits for the end of input, then leaves nothing."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark, folder = sys.argv[1:]
    groups = [int(line) for line in sys.stdin]
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    while left := marked(mark.encode()):
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
