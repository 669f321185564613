"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_trackers() -> list[Component]:
    """The tracker ``opentelemetry``."""
    return [
        Component(
            name="opentelemetry",
            target="astraflow_contrib_opentelemetry.tracker:OpenTelemetryTracker",
            config="astraflow_contrib_opentelemetry.config:OpenTelemetryTrackerConfig",
            summary="traces of prompts to a collector, by OTLP over HTTP",
            capabilities=frozenset({"spans"}),
        )
    ]
