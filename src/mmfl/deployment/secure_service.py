"""SecureService: what a node answers to requests of secure aggregation; its clients' updates leave it in sums only."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmfl.deployment.payload import InvalidPayloadError, Payload
from mmfl.deployment.secure_messages import SumPlan, read_secrets, secure_field, table, write_masked, write_secrets
from mmfl.deployment.secure_node import SecureNode
from mmfl.updates import Trained


class SecureService:
    """Answers the parts of a request's field `secure`: `key` asks for the node's public key, `seeds` [session: nodes]
    and `open` [session: shares] help to unmask sums. `plans` [task] come with trainings, and are read in `add_up`.
    """

    def __init__(self) -> None:
        self._node = SecureNode()

    def answer(self, request: Payload, reply: Payload) -> None:
        """Whatever is asked besides training."""
        asked, told = secure_field(request), reply.fields.setdefault("secure", {})
        if asked.get("key") or self._is_unknown(asked):
            told["key"] = self._node.public_key
        for session, lost in table(asked, "seeds").items():
            seeds = self._node.tell_seeds(session, [str(node) for node in lost])
            told.setdefault("seeds", {})[session] = write_secrets(seeds)
        for session, given in table(asked, "open").items():
            shares = read_secrets({"open": given}, "open", set(given))
            told.setdefault("shares", {})[session] = write_secrets(self._node.open(session, shares))

    def trains(self, request: Payload) -> bool:
        """Whether the server knows this node's key; after a restart it does not, and training would be in vain."""
        return not self._is_unknown(secure_field(request))

    def add_up(
        self,
        request: Payload,
        name: str,
        trained: Trained,
        updates: Tensor,
        coefficients: dict[int, float],
        reply: Payload,
    ) -> None:
        """The clients' updates of a task, clipped, weighted and added up, and masked."""
        asked = secure_field(request)
        plan = SumPlan.read(table(asked, "plans").get(name))
        keys = {node: str(table(asked, "keys").get(node)) for node in plan.nodes}
        weights = np.array([coefficients[i] for i in trained.client.tolist()])
        total, valid = clipped_sum(updates, weights, plan.clip)
        vector = self._node.mask(plan.session, str(asked.get("own")), keys, plan.threshold, plan.grid, total)
        write_masked(reply, name, vector, trained.client[valid].tolist())

    def _is_unknown(self, asked: dict[str, Any]) -> bool:
        keys = table(asked, "keys")
        return bool(keys) and keys.get(str(asked.get("own"))) != self._node.public_key


def clipped_sum(updates: Tensor, weights: NDArray[np.float64], clip: float) -> tuple[Tensor, NDArray[np.bool_]]:
    """The weighted sum of updates [clients, parameters], none of them longer than `clip`, and which of them are in it:
    those that are finite."""
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise InvalidPayloadError("about a sum with weights that are no weights")
    rows = updates.double()
    norms = torch.linalg.vector_norm(rows, dim=1)
    valid = norms.isfinite()
    factors = torch.from_numpy(weights) * (clip / norms).clamp(max=1.0)
    return factors[valid] @ rows[valid], valid.numpy()
