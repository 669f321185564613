"""The benchmarks run and count right. What they time is never asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from workspace import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def quick(name: str) -> dict[str, Any]:
    """The JSON line of ``python -m bench NAME --quick --json``; all its fields are numbers."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", name, "--quick", "--json"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    fields: dict[str, Any] = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    assert fields.pop("benchmark") == name
    wrong = {key: value for key, value in fields.items() if not isinstance(value, int | float)}
    assert wrong == {}
    return fields


def test_the_command_line_starts_without_backends() -> None:
    fields = quick("cli_start")
    assert fields["heavy_modules"] == 0
    assert fields["cpu_s"] >= fields["bare_python_cpu_s"] > 0


def test_a_batch_from_a_full_buffer_is_whole() -> None:
    fields = quick("batch_latency")
    assert fields["lost"] == 0
    # 13 bytes of columns, and what rows and frame add.
    assert 13 < fields["bytes_per_token"] < 14
    for name in ("over_socket_1k", "over_socket_8k", "p99_over_p50"):
        assert fields[name] > 0
    assert fields["vs_reference"] > 0 and fields["vs_reference_without_sleep"] > 0


def test_no_sequence_of_a_thousand_raas_is_lost_or_comes_twice() -> None:
    fields = quick("flow_scale")
    assert fields["lost"] == fields["duplicated"] == 0
    assert fields["over_bare_at_1"] > 0 and fields["over_bare_at_1000"] > 0


def test_no_row_is_lost_whichever_process_is_killed() -> None:
    fields = quick("recovery")
    assert fields["kills"] == 8
    assert fields["lost_rows"] == fields["lost_tasks"] == 0
    for name in ("raas", "host", "trainer", "dataflow"):
        assert fields[f"{name}_own_start_s"] > 0
        assert fields[f"{name}_least_s"] <= fields[f"{name}_s"] <= fields[f"{name}_most_s"]
        # The operating system notes when a process was created in steps of 10 ms.
        assert fields[f"{name}_noticed_s"] > -0.02 and fields[f"{name}_after_start_s"] > 0


def test_health_is_answered_while_versions_are_loaded() -> None:
    fields = quick("raas_health")
    assert fields["versions"] == 4 and fields["calls"] > 0
    assert 0 < fields["p50_ms"] <= fields["p99_ms"] <= fields["most_ms"]
