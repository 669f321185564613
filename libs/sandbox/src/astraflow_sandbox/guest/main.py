"""The first code of the sandboxed interpreter: ``main(DESCRIPTOR, SETTINGS)`` with JSON ``SETTINGS``.

Two processes stay: one outside of the namespaces, which takes away what is left, and the zygote, their first process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

from astraflow_sandbox.guest import frames, kernel
from astraflow_sandbox.guest.descendants import end_all
from astraflow_sandbox.guest.layers import IsolationLayers
from astraflow_sandbox.guest.zygote import Zygote

PRELOADED = (
    "array", "bisect", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools",
    "heapq", "io", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "textwrap", "typing",
)  # fmt: skip
"""What programs import most, imported once."""


def main(descriptor: int, settings: dict[str, Any]) -> None:
    """Serve on the socket ``descriptor`` until its end."""
    control = socket.socket(fileno=kernel.above_standard(descriptor))
    os.environ.clear()
    sys.path[:] = [*sys.path[1:], *settings["import_paths"]]
    for module in (*PRELOADED, *settings["preload"]):
        importlib.import_module(module)
    layers = IsolationLayers(settings)
    layers.leave_host()
    zygote = os.fork()
    if not zygote:
        os._exit(_serve(control, settings, layers))
    control.close()
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    os.waitpid(zygote, 0)
    end_all(first_of_namespace=False)
    layers.remove()
    os._exit(0)


def _serve(control: socket.socket, settings: dict[str, Any], layers: IsolationLayers) -> int:
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    # The first process of a namespace receives only signals that it has a handler for.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    layers.enter()
    refusal = layers.refusal()
    told = {"active": layers.active, "missing": layers.missing, "refusal": refusal}
    control.sendall(frames.pack(told))
    if refusal:
        return 1
    for name in [each for each in sys.modules if each.startswith("astraflow_sandbox")]:
        del sys.modules[name]  # a program finds an interpreter as it is outside
    gc.collect()
    gc.freeze()
    Zygote(
        control,
        settings,
        first_of_namespace="namespaces" in layers.active,
        confine=layers.confine,
        clean=layers.clean,
        waited=layers.waited,
        cpu_of_all=layers.cpu_of_all,
    ).serve()
    return 0


def start(arguments: list[str]) -> None:
    """``main`` from the command line."""
    main(int(arguments[0]), json.loads(arguments[1]))
