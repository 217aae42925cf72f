"""The module that a user writes for a deployment, with the functions `tasks()` and `data(task, client)`."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mmfl.deployment.remote_federation import LocalData
from mmfl.errors import UserError
from mmfl.federation.task import Task


@dataclass(frozen=True)
class UserModule:
    """The content of a user's module: the tasks, and a function that returns a client's data for a task.

    Where a task has `data`, the server tests on it; without it the nodes test on theirs.
    """

    tasks: Sequence[Task]
    data: Callable[[str, int], LocalData]

    @classmethod
    def load(cls, path: Path) -> "UserModule":
        """Loads a Python file."""
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
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
        if not isinstance(tasks, Sequence) or not tasks or not all(isinstance(task, Task) for task in tasks):
            raise UserError(f"module '{path}': tasks() gives {tasks!r}; expected a list of mmfl.Task.")
        names = [task.name for task in tasks]
        repeated = next((name for name in names if names.count(name) > 1), None)
        if repeated is not None:
            raise UserError(f"module '{path}': two tasks are named '{repeated}'; names must differ.")
        return cls(tasks, module.data)
