"""How many episodes a RaaS may run at once on a host that other runs use too: the process that started it sends the
number while it runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from astraflow_runtime.raas.engines.colocation import OwnDevices

PLACES = "ASTRAFLOW_PLACES"
"""Environment variable: a named pipe in which the newest line is the number of episodes, 0 for none."""

_MOST_BYTES = 1 << 16


class GrantedPlaces(OwnDevices):
    """Devices for ``places`` episodes at once, none until the first line came and after the writer has closed the pipe.
    ``changed`` is called with each new number. Episodes that run end in any case."""

    def __init__(self, path: str) -> None:
        self.places = 0
        self.changed: Callable[[int], None] = lambda places: None
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._rest = b""

    @classmethod
    def of_process(cls) -> GrantedPlaces | None:
        """Those that the environment of this process names; ``None`` if the devices are its own."""
        path = os.environ.get(PLACES)
        return cls(path) if path else None

    @property
    def yielding(self) -> bool:  # type: ignore[override]
        """Whether others have all places."""
        return self.places == 0

    def follow(self) -> None:
        """Follow the pipe in the running event loop."""
        asyncio.get_running_loop().add_reader(self._pipe, self._read)

    def _read(self) -> None:
        read = os.read(self._pipe, _MOST_BYTES)
        *lines, self._rest = (self._rest + read).split(b"\n")
        if not read:
            asyncio.get_running_loop().remove_reader(self._pipe)
            self._set(0)
        elif lines:
            self._set(int(lines[-1]))

    def _set(self, places: int) -> None:
        if places != self.places:
            self.places = places
            self.changed(places)
