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
    def find(cls, name: str) -> "UserModule":
        """Loads a module by the name under which it can be imported."""
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise UserError(f"module '{name}' cannot be found.")
        return cls.load(spec.origin)

    @classmethod
    def load(cls, path: str | Path) -> "UserModule":
        """Loads a Python file."""
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
