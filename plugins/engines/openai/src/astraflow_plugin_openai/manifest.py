"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_engines() -> list[Component]:
    """The engine ``openai``."""
    return [
        Component(
            name="openai",
            target="astraflow_plugin_openai.engine:OpenAIEngine",
            config="astraflow_plugin_openai.config:OpenAIConfig",
            summary="any OpenAI-compatible server as a frozen model",
            capabilities=frozenset({"frozen", "score", "pause.wait", "pause.abort"}),
        )
    ]
