"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_engines() -> list[Component]:
    """The engine ``sglang``."""
    return [
        Component(
            name="sglang",
            target="astraflow_plugin_sglang.engine:SGLangEngine",
            config="astraflow_plugin_sglang.config:SGLangConfig",
            summary="an SGLang server, its weights swapped with requests in flight",
            capabilities=frozenset(
                {
                    "score",
                    "images",
                    "pause.keep",
                    "pause.wait",
                    "pause.abort",
                    "weights.path",
                    "weights.inflight",
                }
            ),
        )
    ]
