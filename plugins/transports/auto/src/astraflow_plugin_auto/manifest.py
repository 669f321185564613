"""What this plugin provides: an answer to ``transport.use = "auto"``."""

from __future__ import annotations

from astraflow_core.component import load_attribute
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_choose_transport(run: object, engine: str, trainer: str, ends: object) -> object:
    """Choose by location, capabilities, what is installed, and the bandwidth that was measured."""
    return load_attribute("astraflow_plugin_auto.surroundings:answer")(run, engine, trainer, ends)
