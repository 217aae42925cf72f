"""Registrations: the keys of a folder and the clients they may serve, at the SuperLink and for the runs on it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mmfl.deployment.programs import ControlAPI
from mmfl.deployment.security import Keys
from mmfl.errors import UserError
from mmfl.runs.files import write_atomically


class Registrations:
    """Keeps the SuperLink's list of nodes, and the file that runs read, equal to a folder of keys.

    The `file` is a table in JSON: Flower's number of each node, with the name and content of its key, and its clients
    (`KnownNodes`). It must outlive the SuperLink where its database does, since Flower
    tells nobody later which node has which key.
    """

    def __init__(self, control: ControlAPI, keys: Keys, file: Path):
        self.control, self.keys, self.file = control, keys, file
        self._seen: object = None

    def update(self) -> list[str]:
        """Registers new keys and removes those that were revoked; says what was done, in words."""
        self._seen = self._version()
        clients, present = self.keys.clients(), {path.stem: path.read_text().strip() for path in self.keys.public_keys}
        recorded = self._recorded()
        listed = {node["node"] for node in self.control.list_nodes()}
        kept = {n: row for n, row in recorded.items() if n in listed and present.get(row["key"]) == row["public"]}
        self._write(kept, clients)  # first, so that runs let nobody in whose key is gone
        with suppress(UserError):  # Flower removes no node that was never there; the proxy refuses it in any case
            self.control.unregister_nodes(sorted(listed - set(kept)))
        new = sorted(set(present) - {row["key"] for row in kept.values()})
        numbers = self.control.register_nodes([self.keys.folder / f"{name}.pub" for name in new])
        for name, number in zip(new, numbers, strict=True):
            kept[number] = {"key": name, "public": present[name]}
        self._write(kept, clients)
        revoked = sorted({row["key"] for row in recorded.values()} - set(present))
        return [*(f"key '{name}' is revoked" for name in revoked), *(f"key '{name}' is registered" for name in new)]

    def update_if_changed(self) -> list[str]:
        """Updates if the folder has changed; a file with a mistake is named, and the last state stays."""
        if self._version() == self._seen:
            return []
        try:
            return self.update()
        except UserError as error:
            return [f"keys are not updated: {error}"]

    def _version(self) -> object:
        places = [*self.keys.public_keys, self.keys.table]
        return [(path.name, path.stat().st_mtime_ns) for path in places if path.exists()]

    def _recorded(self) -> dict[str, dict[str, str]]:
        try:
            recorded: dict[str, dict[str, str]] = json.loads(self.file.read_text())
        except FileNotFoundError:
            return {}
        return recorded

    def _write(self, nodes: Mapping[str, Mapping[str, str]], clients: Mapping[str, str]) -> None:
        """Writes the nodes, each with the clients that its key may serve: none where `clients.toml` does not say."""
        table = {number: {**row, "clients": clients.get(row["key"], "")} for number, row in nodes.items()}
        write_atomically(self.file, json.dumps(table, indent=1).encode())
