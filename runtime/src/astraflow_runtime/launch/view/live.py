"""A run as a picture that moves, on a terminal."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.text import Text

from astraflow_core.config.models import RunConfig
from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.launch.view.formatting import Rates
from astraflow_runtime.launch.view.picture import Picture, Seen
from astraflow_runtime.telemetry.printable import printable, shown
from astraflow_wire.status import Status

_KEPT_REWARDS = 40
_KEPT_MESSAGES = 20
"""That are written again when the screen is."""


class LiveView:
    """Drawn again at each :meth:`show`, by the caller's thread only. ``header`` and messages scroll by above it."""

    def __init__(
        self,
        config: RunConfig,
        stream: TextIO,
        directory: Path | None = None,
        header: str = "",
    ) -> None:
        self._console = Console(file=stream)
        self._picture = Picture(config, directory, self._console)
        self._rates = Rates()
        self._rewards: dict[str, deque[float]] = {
            name: deque(maxlen=_KEPT_REWARDS) for name in config.policies
        }
        self._updates: dict[str, int] = {}
        self._began = time.monotonic()
        self._above = deque([Text(printable(header.rstrip("\n")))] if header else [])
        self._width = self._console.width
        for text in self._above:
            self._print(text)
        self._live = self._new_live()

    def show(self, status: Status, processes: Sequence[ProcessState]) -> None:
        """Draw the newest state."""
        now = time.monotonic()
        self._rates.update(now, status.tokens_generated, status.tokens_trained)
        for name, policy in status.policies.items():
            if policy.reward is not None and self._updates.get(name) != policy.updates:
                self._updates[name] = policy.updates
                self._rewards[name].append(policy.reward)
        seen = Seen(now - self._began, self._rates.generated, self._rates.trained, self._rewards)
        self._mend()
        self._live.update(self._picture.of(status, processes, seen), refresh=True)

    def say(self, message: str) -> None:
        """Print above the picture."""
        self._mend()
        text = Text(shown(message))
        self._above.append(text)
        if len(self._above) > _KEPT_MESSAGES:
            del self._above[1]  # the header stays
        self._print(text)

    def close(self) -> None:
        """Leave the last picture on the screen."""
        self._mend()
        self._live.stop()

    def _print(self, text: Text) -> None:
        # The terminal breaks long lines itself, so that what is copied from them is whole.
        self._console.print(text, soft_wrap=True)

    def _new_live(self) -> Live:
        live = Live(console=self._console, auto_refresh=False, transient=False)
        live.start()
        return live

    def _mend(self) -> None:
        """Write the screen again once it is narrower: the terminal may or may not have wrapped lines of
        the picture by now, so the number of lines to replace is unknown."""
        before, self._width = self._width, self._console.width
        if self._width >= before:
            return
        picture = self._live.get_renderable()
        self._live.transient = True
        self._live.stop()
        self._console.control(Control.clear(), Control.home())
        for text in self._above:
            self._print(text)
        self._live = self._new_live()
        self._live.update(picture)
