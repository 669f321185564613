"""A control group for all processes of a sandbox together, where this user may make one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_REMOVED_S = 5.0
_WAIT_S = 0.01

Groups = list[Path]


def make(memory_bytes: int, processes: int) -> Groups:
    """Groups that limit the memory and the number of processes of their members; :class:`OSError` says why there
    are none. Version 2 has one for both, version 1 one for each."""
    name = f"astraflow-sandbox-{os.getpid()}"
    reasons: list[str] = []
    for parent in _parents_v2():
        try:
            return [_create(parent / name, {"memory.max": memory_bytes, "pids.max": processes})]
        except OSError as error:
            reasons.append(f"{parent}: {error.strerror}")
    made: Groups = []
    try:
        for controller, key, value in (
            ("memory", "memory.limit_in_bytes", memory_bytes),
            ("pids", "pids.max", processes),
        ):
            made.append(_create(_own_v1(controller) / name, {key: value}))
    except OSError as error:
        remove(made)
        reasons.append(str(error))
        raise OSError(f"no cgroup could be created ({'; '.join(reasons)})") from error
    return made


def join(groups: Groups) -> None:
    """Put this process, and what it starts from now on, into the groups."""
    for group in groups:
        (group / "cgroup.procs").write_text("0")


def remove(groups: Groups) -> None:
    """Remove groups whose processes end."""
    until = time.monotonic() + _REMOVED_S
    for group in groups:
        while True:
            try:
                group.rmdir()
                break
            except FileNotFoundError:
                break
            except OSError:
                if time.monotonic() > until:
                    raise
                time.sleep(_WAIT_S)


def _create(group: Path, values: dict[str, int]) -> Path:
    group.mkdir()
    try:
        for key, value in values.items():
            (group / key).write_text(str(value))
        swap = group / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
    except OSError:
        group.rmdir()
        raise
    return group


def _parents_v2() -> Iterator[Path]:
    """Groups of version 2 below which memory is counted: this process's own, or the one above."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            own = _ROOT / line[3:].strip("/")
            for group in (own, own.parent):
                control = group / "cgroup.subtree_control"
                if control.is_file() and {"memory", "pids"} <= set(control.read_text().split()):
                    yield group


def _own_v1(controller: str) -> Path:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(",") and (_ROOT / controller).is_dir():
            return _ROOT / controller / path.strip("/")
    raise OSError(f"there is no controller {controller!r}")
