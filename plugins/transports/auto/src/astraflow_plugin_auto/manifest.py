"""What this plugin provides: an answer to ``transport.use = "auto"``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from astraflow_core.component import load_attribute
from astraflow_core.hookspecs import hookimpl

if TYPE_CHECKING:
    from astraflow_core.types import TransportChoice, TransportEnds

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_choose_transport(engine: str, trainer: str, ends: TransportEnds) -> TransportChoice:
    """Choose by location, capabilities, what is installed, and bandwidth where known."""
    answer: TransportChoice = load_attribute("astraflow_plugin_auto.surroundings:answer")(
        engine, trainer, ends
    )
    return answer
