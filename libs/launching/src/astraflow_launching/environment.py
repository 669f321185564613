"""What a process on another host gets of the launcher's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping

from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_launching.placement import THREAD_VARIABLES, ProcessPlace
from astraflow_wire.http.listening import HOST_ADDRESS

_OF_A_HOST = frozenset((
    "HOME", "USER", "LOGNAME", "SHELL", "PATH", "PWD", "OLDPWD", "HOSTNAME", "TMPDIR", "TEMP", "TMP", "MAIL",
    "DISPLAY", "TERM", "SHLVL", "_", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH",
))  # fmt: skip
_PREFIXES = ("SSH_", "XDG_", "DBUS_", "SLURM_", "RAY_", "KUBERNETES_", "ASTRAFLOW_LAUNCHER")


def carried(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that mean the same on another host."""
    return {
        key: value
        for key, value in environment.items()
        if key not in _OF_A_HOST and not key.startswith(_PREFIXES)
    }


def environment_of(
    spec: ProcessSpec, place: ProcessPlace, address: str, shares_gpus: bool
) -> dict[str, str]:
    """All variables that a process gets in addition to those of its host."""
    found = dict.fromkeys(THREAD_VARIABLES, str(place.threads)) | carried(os.environ)
    found["PYTHONUNBUFFERED"] = "1"
    found[HOST_ADDRESS] = address
    if shares_gpus:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(place.gpus)
    return found | dict(spec.environment)
