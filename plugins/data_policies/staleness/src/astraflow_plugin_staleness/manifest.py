"""What this distribution provides; strings only, nothing heavy is imported."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_data_policies() -> list[Component]:
    """The data policies ``staleness_decay`` and ``staleness_throttle``."""
    return [
        Component(
            name="staleness_decay",
            target="astraflow_plugin_staleness.decay:StalenessDecay",
            config="astraflow_plugin_staleness.config:StalenessDecayConfig",
            summary="admits old rows into a batch with lower probability",
            capabilities=frozenset({"arrange", "stateful", "random"}),
        ),
        Component(
            name="staleness_throttle",
            target="astraflow_plugin_staleness.throttle:StalenessThrottle",
            config="astraflow_plugin_staleness.config:StalenessThrottleConfig",
            summary="rolls out fewer prompts at once while samples arrive stale",
            capabilities=frozenset({"accept", "hold", "stateful"}),
        ),
    ]
