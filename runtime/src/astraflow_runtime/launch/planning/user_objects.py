"""Hands the workflow and reward objects of the Python API to the run's own processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError
from astraflow_runtime.raas.user_objects import as_workflow, score_function


def checked_objects(workflow: Any, reward: Any) -> dict[str, Any]:
    """The objects that were given; raises :class:`UserError` if other ones were expected."""
    for kind, given in (("workflow", workflow), ("reward", reward)):
        if isinstance(given, type):
            raise UserError(f"{kind}: {given.__name__} is a class; give an instance of it")
    given = {}
    if workflow is not None:
        as_workflow(workflow)
        given["workflow"] = workflow
    if reward is not None:
        score_function(reward)
        given["reward"] = reward
    return given


def pickled(objects: Mapping[str, Any]) -> bytes:
    """The objects as bytes; a :class:`UserError` if they hold what no other process can have."""
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(dict(objects))
    except (TypeError, AttributeError, ValueError, OSError) as error:
        names = " and ".join(objects)
        raise UserError(
            f"the {names} cannot be sent to other processes: {error}; create its files, locks and connections "
            "inside the function, at first use"
        ) from error
    return data


def inherited_path() -> str:
    """``PYTHONPATH`` of this process."""
    return os.environ.get("PYTHONPATH", "")


def import_path() -> str:
    """``PYTHONPATH`` with which the processes import what the caller's script imports from its folder."""
    return os.pathsep.join(part for part in (sys.path[0] or os.getcwd(), inherited_path()) if part)


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only this user can read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def python_path(before: str, folders: Iterable[str]) -> dict[str, str]:
    """The environment of processes that are to find modules in ``folders`` behind those of the path ``before``;
    nothing if there is neither."""
    parts = dict.fromkeys(part for part in (*before.split(os.pathsep), *folders) if part)
    return {"PYTHONPATH": os.pathsep.join(parts)} if parts else {}
