"""What travels to a collector, and what happens without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from astraflow_contrib_opentelemetry.config import OpenTelemetryTrackerConfig
from astraflow_contrib_opentelemetry.tracker import OpenTelemetryTracker
from astraflow_core.errors import UserError
from astraflow_testing.conformance._trackers.cases import spans
from astraflow_testing.conformance.subject import context


def tracker(folder: Path, **keys: Any) -> OpenTelemetryTracker:
    return OpenTelemetryTracker(OpenTelemetryTrackerConfig(**keys), context("launcher", folder))


def test_the_variables_of_opentelemetry_are_heeded(
    collector: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    tracker(tmp_path).spans(spans(1))
    assert collector.headers[0]["authorization"] == "Bearer x"
    assert collector.headers[0]["content-encoding"] == "gzip"
    failed = [span for _, span in collector.spans if span.status.code == Status.STATUS_CODE_ERROR]
    assert [(span.name, span.status.message) for span in failed] == [("episode", "it failed")]
    numbers = {a.key: a.value.int_value for a in failed[0].attributes}
    assert numbers["astraflow.rows"] == 8


def test_a_collector_that_refuses_is_named(collector: Any, tmp_path: Path) -> None:
    collector.status = 400
    with pytest.raises(UserError, match="/v1/traces took no spans"):
        tracker(tmp_path, endpoint=collector.url).spans(spans(1))


def test_a_collector_that_is_not_there_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"took no spans within 0\.5 s"):
        tracker(tmp_path, endpoint="http://127.0.0.1:9", timeout_s=0.5).spans(spans(1))
