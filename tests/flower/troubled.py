"""The worker, with troubles: before each answer it looks for a file named like its first client and does what it says.

    python troubled.py FOLDER --module ... --clients ... --socket ...

A trouble happens once, with the next answer that has a training in it.
"""

import sys
import time
from pathlib import Path

import torch

from mmfl.flower import worker
from mmfl.flower.site import Site
from mmfl.flower.wire import Payload

answer = Site.answer


def troubled(site: Site, packed: bytes) -> bytes:
    """The answer, spoiled as asked."""
    reply = answer(site, packed)
    order = Path(sys.argv[1]) / str(site.federation.members[0])
    payload = Payload.unpack(reply)
    if not payload.vectors or not order.exists():
        return reply
    kind = order.read_text()
    order.unlink()
    vectors = dict(payload.vectors)
    name = sorted(vectors)[0]
    if kind == "slow":
        time.sleep(16)
    elif kind == "garbage":
        return b"\x80\x04garbage"
    elif kind == "nan":
        vectors[name][0] = torch.nan
    elif kind == "norm":
        vectors[name] *= 1e12
    elif kind == "shape":
        vectors[name] = vectors[name][:-1].clone()
    elif kind == "task":
        vectors["update.another.0"] = vectors.pop(name)
    return Payload(payload.said, vectors).pack()


if __name__ == "__main__":
    Site.answer = troubled
    sys.exit(worker.main(sys.argv[2:]))
