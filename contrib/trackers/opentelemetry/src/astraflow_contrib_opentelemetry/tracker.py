"""Traces of prompts, sent by the exporter of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from astraflow_contrib_opentelemetry.config import OpenTelemetryTrackerConfig
from astraflow_core.errors import UserError
from astraflow_core.types import ComponentContext, RunInfo

SPANS_AT_ONCE = 512
_S = 1_000_000_000


class OpenTelemetryTracker:
    """Implements :class:`astraflow_core.protocols.tracker.Tracker`; it takes spans, and no metrics: Prometheus has these. Each
    service is a separate resource."""

    def __init__(self, config: OpenTelemetryTrackerConfig, context: ComponentContext) -> None:
        self._config, self._run = config, context.run.directory.name
        endpoint = f"{config.endpoint.rstrip('/')}/v1/traces" if config.endpoint else None
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=config.timeout_s)
        self._resources: dict[str, Resource] = {}

    def started(self, run: RunInfo, config: Mapping[str, Any]) -> str:
        """Nothing is sent before there are spans."""
        return str(self._exporter._endpoint)

    def metrics(self, group: str, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Metrics are ignored."""

    def spans(self, spans: Sequence[Mapping[str, Any]]) -> None:
        """Export them; :class:`UserError` if the collector does not take them."""
        readable = [self._readable(span) for span in spans]
        for begin in range(0, len(readable), SPANS_AT_ONCE):
            part = readable[begin : begin + SPANS_AT_ONCE]
            if self._exporter.export(part) is not SpanExportResult.SUCCESS:
                raise UserError(
                    f"the collector at {self._exporter._endpoint} took no spans within {self._config.timeout_s:g} s; check "
                    "that it listens there, for OTLP over HTTP"
                )

    def ended(self, state: str, summary: Mapping[str, Any], curves: Path | None) -> None:
        """Close the connection."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _resource(self, service: str) -> Resource:
        if service not in self._resources:
            attributes = {
                "service.name": service,
                "service.namespace": self._config.namespace,
                "service.instance.id": f"{self._run}/{service}",
            }
            self._resources[service] = Resource.create(attributes)
        return self._resources[service]

    def _readable(self, span: Mapping[str, Any]) -> ReadableSpan:
        trace, parent = int(span["trace"], 16), span["parent"]
        error = span["error"]
        return ReadableSpan(
            name=span["name"],
            context=_context(trace, span["id"]),
            parent=_context(trace, parent) if parent else None,
            resource=self._resource(span["service"]),
            attributes=span["attributes"],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, error) if error else Status(),
            start_time=int(span["start_s"] * _S),
            end_time=int(span["end_s"] * _S),
        )


def _context(trace: int, span: str) -> SpanContext:
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace, int(span, 16), is_remote=False, trace_flags=sampled)
