"""Registrations: the keys of a folder and the clients they may serve, at the SuperLink and for the runs on it."""

import json
from pathlib import Path

from mmfl.deployment.keys import Keys
from mmfl.deployment.programs import ControlAPI
from mmfl.errors import UserError
from mmfl.runs.files import write_atomically

_RESERVED_NONE = ""  # the clients of a key that clients.toml does not name


class Registrations:
    """Keeps the SuperLink's list of nodes, and the file that runs read, equal to a folder of keys.

    The `file` is a table in JSON: Flower's number of each node, with the name and content of its key, and its clients
    ([`KnownNodes`][mmfl.deployment.known_nodes]). It must outlive the SuperLink where its database does, since Flower
    tells nobody later which node has which key.
    """

    def __init__(self, control: ControlAPI, keys: Keys, file: Path):
        self.control, self.keys, self.file = control, keys, file
        self._seen: object = None

    def update(self) -> list[str]:
        """Registers new keys and removes those that were revoked; says what was done, in words."""
        self._seen = self._version()
        clients, present = self.keys.clients(), {path.stem: path.read_text().strip() for path in self.keys.public_keys}
        recorded, listed = self._recorded(), set(self.control.list_nodes())
        kept = {
            number: row
            for number, row in recorded.items()
            if number in listed and present.get(row["key"]) == row["public"]
        }
        for number in sorted(listed - set(kept)):
            self.control.unregister_node(number)
        new = sorted(set(present) - {row["key"] for row in kept.values()})
        numbers = self.control.register_nodes([self.keys.folder / f"{name}.pub" for name in new])
        for name, number in zip(new, numbers, strict=True):
            kept[number] = {"key": name, "public": present[name]}
        table = {str(n): row | {"clients": clients.get(row["key"], _RESERVED_NONE)} for n, row in kept.items()}
        write_atomically(self.file, json.dumps(table, indent=1).encode())
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

    def _recorded(self) -> dict[int, dict[str, str]]:
        try:
            return {int(number): row for number, row in json.loads(self.file.read_text()).items()}
        except FileNotFoundError:
            return {}
