"""The suites of AstraFlow; the record is what a collector of OTLP got."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from astraflow_core.types import ComponentContext
from astraflow_testing.conformance.manifest import ManifestConformance
from astraflow_testing.conformance.subject import Subject, installed
from astraflow_testing.conformance.tracker import Read, Recorded, TrackerConformance

NO_METRICS = "it takes spans and leaves metrics to Prometheus"


class TestManifest(ManifestConformance):
    @pytest.fixture
    def manifest(self) -> str:
        return "astraflow_contrib_opentelemetry.manifest"


class TestOpenTelemetry(TrackerConformance):
    expected_failures: ClassVar = {
        "test_every_value_is_recorded_with_its_step": NO_METRICS,
        "test_the_last_values_are_recorded": NO_METRICS,
        "test_a_resumed_run_continues_its_record": NO_METRICS,
        "test_a_run_whose_launcher_was_killed_is_continued": NO_METRICS,
        "test_runs_have_records_of_their_own": NO_METRICS,
        "test_the_config_is_recorded": "a trace names its run, whose directory has the config",
    }

    @pytest.fixture
    def component(self, collector: Any) -> Subject:
        return installed("tracker", "opentelemetry", {"endpoint": collector.url})

    @pytest.fixture
    def read(self, collector: Any) -> Read:
        def recorded(context: ComponentContext) -> Recorded:
            spans = [
                (
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    service,
                    span.start_time_unix_nano / 1e9,
                )
                for service, span in collector.spans
            ]
            return Recorded(spans=spans)

        return recorded
