"""The module a user writes for a deployment: `tasks()`, and `data(task, client)` for what a node holds."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmfl.deployment.remote_federation import LocalData
from mmfl.errors import UserError
from mmfl.federation.task import Task


@dataclass(frozen=True)
class Module:
    """What the module says: the tasks, alike for server and nodes, and a client's data of a task.

    A task's `data`, where it is given, is what the server tests on; without it the nodes test on theirs.
    """

    tasks: Sequence[Task]
    data: Callable[[str, int], LocalData]

    @classmethod
    def named(cls, name: str) -> "Module":
        """From a module that can be imported."""
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise UserError(f"module '{name}' cannot be found.")
        return cls.load(spec.origin)

    @classmethod
    def load(cls, path: str | Path) -> "Module":
        """From a Python file."""
        path = Path(path)
        if not path.is_file():
            raise UserError(
                f"module '{path}' does not exist; expected a Python file with tasks() and data(task, client)."
            )
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise UserError(f"module '{path}' is not a Python file.")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        try:
            spec.loader.exec_module(module)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"module '{path}' cannot be imported: {type(error).__name__}: {error}") from None
        for name in ("tasks", "data"):
            if not callable(getattr(module, name, None)):
                raise UserError(f"module '{path}' has no function '{name}'; expected tasks() and data(task, client).")
        tasks = module.tasks()
        wrong = not isinstance(tasks, Sequence) or not tasks or not all(isinstance(task, Task) for task in tasks)
        if wrong:
            raise UserError(f"module '{path}': tasks() gives {tasks!r}; expected a list of mmfl.Task.")
        names = [task.name for task in tasks]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise UserError(f"module '{path}': two tasks are named '{repeated}'; names must differ.")
        return cls(tasks, module.data)
