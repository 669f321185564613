"""A process that has imported what others need, and forks them.

``python -m astraflow_runtime.forking.server DESCRIPTOR ROOM CONFIG MODULE… -- MODULE…`` imports these modules and those of the engines, trainers
and other components in the configuration. It has one thread then, has run no operation of a deep learning framework and opened
no GPU, which is what these ask of a process that forks; else it ends, and processes are started. The other end of the socket asks for
processes, which become its children. The first one is forked before the imports that only the others need.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from astraflow_core.component import Kind
from astraflow_core.config.load import LoadedConfig
from astraflow_core.config.tables import component_tables
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.forking.becoming import (
    ROOM_VARIABLE,
    ModuleProcess,
    become,
    note_what_is_imported,
    show_in_proc,
)
from astraflow_runtime.models.folders import resolve_models
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_wire.host.parent import signal_at_parent_death
from astraflow_wire.host.process import freeze_gc_after_startup

MODULE = "astraflow_runtime.forking.server"
MOST_BYTES = 1 << 17
OF_PROCESSES = frozenset(
    {Kind.ENGINE, Kind.TRAINER, Kind.ALGORITHM, Kind.TRANSPORT, Kind.WORKFLOW, Kind.REWARD}
)
FIRST_S = 1.0
"""How long the first process is waited for: it is usually asked for long before these imports are done."""
LATER = "--"
"""Between the modules that the first process needs and those that only the others need."""
DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
PRELOAD = "preload"
"""A module of an engine or a trainer may have this function of a model's folder: it imports what only that model needs, starts no
thread and touches no device."""


def serve(channel: socket.socket, most: int | None = None) -> None:
    """Fork what is asked for, until the other end is closed, or ``most`` processes."""
    while most is None or most > 0:
        most = None if most is None else most - 1
        message, descriptors, _, _ = socket.recv_fds(channel, MOST_BYTES, 3)
        if not message:
            return
        asked = json.loads(message)
        left = iter(descriptors)
        streams = [next(left) if there else -1 for there in asked.pop("given")]
        reader, writer = os.pipe()
        between = os.fork()
        if between == 0:
            # Once this one ends, the nearest ancestor that adopts orphans is the parent.
            between = os.getpid()
            pid = os.fork()
            if pid == 0:
                while os.getppid() == between:
                    time.sleep(0.001)
                become(ModuleProcess(**asked), streams, kept=[])
            os.write(writer, str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        channel.send(os.read(reader, 32))
        for fd in (reader, writer, *descriptors):
            os.close(fd)


def import_for_first(file: str, modules: Sequence[str]) -> LoadedConfig:
    """Import ``modules``, and find the plugins of a configuration."""
    for module in modules:
        importlib.import_module(module)
    return load_config(file, workflow_given=True)


def import_for_others(loaded: LoadedConfig, modules: Sequence[str]) -> None:
    """Import ``modules``, and those of the components in a configuration. A component that cannot be imported is left to the process that
    needs it, which says so."""
    for module in modules:
        importlib.import_module(module)
    config = resolve_models(loaded.config, ModelResolver(loaded.catalog))
    for place in component_tables(config):
        if place.kind not in OF_PROCESSES:
            continue
        with contextlib.suppress(Exception):
            target = loaded.catalog.select(place.kind, place.table.use).component.target
            component = importlib.import_module(target.partition(":")[0])
            if place.kind in (Kind.ENGINE, Kind.TRAINER):
                served = config.served[place.path.split(".")[1]]
                getattr(component, PRELOAD, _nothing)(Path(served.model))


def _nothing(model: Path) -> None:
    """Of a module without :data:`PRELOAD`."""


def may_fork() -> bool:
    """Whether forks of this process will work: no other thread may hold a lock, which would never be released in a fork, and no
    library has opened a GPU, which a fork could not use."""
    if len(os.listdir("/proc/self/task")) > 1:
        return False
    return not any(_target(number).startswith(DEVICES) for number in os.listdir("/proc/self/fd"))


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:  # that of the listing itself
        return ""


def main() -> None:
    """Import, and fork until the launcher ends."""
    signal_at_parent_death(signal.SIGKILL)
    descriptor, config, modules = int(sys.argv[1]), sys.argv[3], sys.argv[4:]
    later = modules.index(LATER)
    os.environ.pop(ROOM_VARIABLE, None)
    show_in_proc([sys.executable, "-m", MODULE, config], os.environ)
    channel = socket.socket(fileno=descriptor)
    with freeze_gc_after_startup():
        loaded = import_for_first(config, modules[:later])
    note_what_is_imported()
    if may_fork() and select.select([channel], (), (), FIRST_S)[0]:
        serve(channel, most=1)
    with freeze_gc_after_startup():
        import_for_others(loaded, modules[later + 1 :])
    note_what_is_imported()
    if may_fork():
        serve(channel)


if __name__ == "__main__":
    from astraflow_runtime.forking.server import main as main_of_the_module

    main_of_the_module()
