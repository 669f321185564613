"""Its keys."""

from __future__ import annotations

from pydantic import Field

from astraflow_core.config.models import ConfigModel


class OpenTelemetryTrackerConfig(ConfigModel):
    """Keys of ``opentelemetry``. What is not set comes from the variables of OpenTelemetry, such as
    ``OTEL_EXPORTER_OTLP_ENDPOINT`` and ``OTEL_EXPORTER_OTLP_HEADERS``."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="Base URL of a collector that speaks OTLP over HTTP, such as 'http://localhost:4318'; default: as the "
        "OTEL_* variables say.",
    )
    namespace: str = Field(default="astraflow", description="service.namespace of all services.")
    timeout_s: float = Field(default=10.0, gt=0, description="Maximum time for an export.")
