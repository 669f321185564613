"""The progress of a start is reported as a share: services that are ready, and the part of their models that the others
have read."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launch_support import Table, parsed
from rich.console import Console

from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.launch.view.picture import Picture, Seen
from astraflow_runtime.launch.view.plain import PlainView
from astraflow_runtime.launch.view.starting import Starting
from astraflow_wire.policy_status import PolicyStatus
from astraflow_wire.status import RaasStatus, Status

MIB = 1 << 20


def starting(version: int = -1, raas: bool = False, **more: Any) -> Status:
    """Of a run whose trainer and two RaaS may be ready."""
    policies = {"solver": PolicyStatus(version=version, trainer="here")}
    there = [RaasStatus(name=f"raas-{index}", ready=raas) for index in range(2)]
    return Status(policies=policies, raas=there, **more)


def processes(pid: int = 0) -> list[ProcessState]:
    """``pid``: of the trainer."""
    return [ProcessState("dataflow", 0, None), ProcessState("trainer-solver", pid, None)]


def test_services_become_ready_and_then_it_is_over(table: Table) -> None:
    start = Starting(parsed(table))
    shares = []
    for status in (Status(), starting(), starting(0), starting(0, raas=False)):
        found = start.of(status, processes())
        assert found is not None and found.services == 4
        shares.append(found.share)
    assert shares == [0, 1 / 4, 2 / 4, 2 / 4]
    assert start.of(starting(0, raas=True), processes()) is None
    assert start.of(starting(), processes()) is None, "a RaaS that is restarted is no start"
    for status in (starting(steps=1, state="running"), starting(state="failed")):
        other = Starting(parsed(table))
        assert other.of(starting(), processes()) is not None
        assert other.of(status, processes()) is None


READS_HALF = """
import mmap, sys
print("begun", flush=True)
input()
with open(sys.argv[1], "rb") as opened:
    view = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
for page in range(0, len(view) // 2, mmap.PAGESIZE):
    view[page]
print("half", flush=True)
input()
view.close()
print("closed", flush=True)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_part_of_a_model_that_is_read_is_reported_as_a_share(
    table: Table, tmp_path: Path
) -> None:
    """By a process of its own: this one may have mapped models for other tests."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(8 * MIB))
    start = Starting(parsed(table))
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", READS_HALF, str(file)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1) as reader:
        try:
            assert reader.stdin is not None and reader.stdout is not None

            def share(expected: str) -> float | None:
                assert reader.stdout is not None and reader.stdout.readline().strip() == expected
                found = start.of(starting(), processes(reader.pid))
                assert found is not None
                return found.reading.get("trainer-solver")

            assert share("begun") is None
            reader.stdin.write("\n")
            half = share("half")
            assert half is not None and 0.4 < half < 0.7
            reader.stdin.write("\n")
            assert share("closed") == 1, "it has read its model and closed the file"
        finally:
            reader.kill()


def test_a_child_is_part_of_its_process(table: Table, tmp_path: Path) -> None:
    model = tmp_path / "a model.safetensors"
    model.write_bytes(bytes(4096))
    for pid, child in (7, "8 "), (8, ""):
        task = tmp_path / str(pid) / "task" / str(pid)
        task.mkdir(parents=True)
        (task / "children").write_text(child)
    place = f"7f-80 r--p 0000 08:01 42    {model}\n"
    (tmp_path / "8" / "maps").write_text(place)
    other = "80-81 rw-p 0000 00:00 0\nRss:    9 kB\n"
    (tmp_path / "8" / "smaps").write_text(f"{place}Rss:    1 kB\nPss:    1 kB\n{other}")
    found = Starting(parsed(table), tmp_path).of(starting(), processes(7))
    assert found is not None and found.reading == {"trainer-solver": 0.25}
    assert found.share == pytest.approx((1 + 0.9 * 0.25) / 4)
    assert str(found) == "1 of 4 services are ready, trainer-solver has read 25% of its model"


def test_the_views_show_the_start_in_place_of_steps(table: Table) -> None:
    now = [0.0]
    stream = io.StringIO()
    plain = PlainView(parsed(table), stream, clock=lambda: now[0])
    for seconds in (0.0, 1.0, 11.0):
        now[0] = seconds
        plain.show(starting(), processes())
    plain.show(starting(0), processes())
    told = [line for line in stream.getvalue().splitlines() if not line.startswith("run is")]
    first, second = (
        "starting, 25%: 1 of 4 services are ready",
        "starting, 50%: 2 of 4 services are ready",
    )
    assert told == [first, first, second]
    plain.show(starting(0, raas=True, state="running"), processes())
    assert "step 0/20" in stream.getvalue()

    console = Console(file=io.StringIO(), width=60, height=20, color_system=None)
    picture = Picture(parsed(table), None, console)
    console.print(picture.of(starting(), processes(), Seen(3.0, 0.0, 0.0, {"solver": []})))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "starting 1/4" in text and "step 0" not in text
