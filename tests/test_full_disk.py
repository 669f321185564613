"""Whole runs on file systems that are really full: all processes wait, those that die come back, and nothing is
lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from astraflow_runtime.launch.planning.leftovers import clear_leftovers
from astraflow_runtime.launch.planning.resume import LEFT_BEHIND
from astraflow_testing.runs import EndedCommand, User, live_commands, live_processes
from astraflow_testing.small_disk import CannotMount, SmallDisk, small_disk

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]
STEPS = 24
DATAFLOW = ("dataflow",)
TRAINER = ("trainer", "solver")
HOST = ("astraflow_engine_host.main",)


@pytest.fixture
def disk(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[SmallDisk]:
    kind = getattr(request, "param", "tmpfs")
    try:
        with small_disk(tmp_path_factory.mktemp("mounted"), kind) as made:
            yield made
    except CannotMount as error:
        pytest.skip(str(error))


@pytest.fixture
def lodger(disk: SmallDisk, user: User) -> User:
    """A user whose runs are on the small disk."""
    (user.directory / "runs").symlink_to(disk.path, target_is_directory=True)
    return user


def started(user: User, disk: SmallDisk, *overrides: str) -> subprocess.Popen[str]:
    return user.start(
        *user.table_arguments(
            f"run.steps={STEPS}",
            f"run.directory={disk.path}",
            "run.deadline_s=5",
            "checkpoint.every=4",
            "policies.solver.trainer.step_s=0.05",
            *overrides,
        )
    )


def run_directory(disk: SmallDisk) -> Path:
    (found,) = disk.path.glob("table-*")
    return found


def wait_for_steps(user: User, disk: SmallDisk, count: int) -> Path:
    def there() -> bool:
        found = list(disk.path.glob("table-*/metrics.jsonl"))
        return bool(found) and found[0].read_text().count('"step"') >= count

    user.wait_for(there, 60)
    return run_directory(disk)


def pid_of(user: User, words: tuple[str, ...]) -> int | None:
    for pid, line in live_commands(user.marker).items():
        if all(word in line for word in words):
            return pid
    return None


def kill(user: User, words: tuple[str, ...]) -> None:
    """Kill that process, and wait until another has replaced it or waits for disk space to do so."""
    before = pid_of(user, words)
    assert before is not None
    os.kill(before, signal.SIGKILL)
    if words == HOST:  # without disk space its RaaS cannot write the files of the next host
        user.wait_for(lambda: pid_of(user, words) is None)
    else:
        user.wait_for(lambda: pid_of(user, words) not in (None, before))


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Wait until it has printed these words; what it prints later is left to others."""
    assert process.stdout is not None
    printed = ""
    while words not in printed:
        more = os.read(process.stdout.fileno(), 1 << 16)
        assert more, f"it ended without {words!r}:\n{printed}"
        printed += more.decode("utf-8", "replace")


def check(ended: EndedCommand, directory: Path) -> None:
    assert ended.exit_code == 0, ended.text
    assert "Traceback" not in ended.text
    for log in (directory / "logs").glob("*.log"):
        assert "Traceback" not in log.read_text(), log
    status: dict[str, Any] = json.loads((directory / "status.json").read_text())
    assert status["invariants_ok"]
    assert status["state"] == "finished"
    assert json.loads((directory / "summary.json").read_text())["lost"] == 0
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    made = [line for line in lines if "step" in line]
    assert [line["step"] for line in made if not line["again"]] == list(range(1, STEPS + 1))
    assert max(line["staleness_max"] for line in made) <= 2
    assert (directory / "models" / "solver" / "model.safetensors").stat().st_size


def held_back(directory: Path) -> str:
    """Why the running dataflow leases no tasks."""
    url = json.loads((directory / "dataflow.json").read_text())["url"]
    token = {"authorization": f"Bearer {(directory / 'token').read_text()}"}
    return str(httpx.get(f"{url}/v1/status", headers=token, timeout=10).json()["held_back"])


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["tmpfs", "ext4"], indirect=True)
def test_a_run_whose_processes_are_killed_while_the_disk_is_full(
    lodger: User, disk: SmallDisk
) -> None:
    process = started(lodger, disk)
    directory = wait_for_steps(lodger, disk, 5)
    disk.fill()
    lodger.wait_for(lambda: "there is no disk space for the records" in held_back(directory), 60)
    read_until(process, "the disk is full: No space left on device")
    for victim in (DATAFLOW, HOST, TRAINER, DATAFLOW):
        kill(lodger, victim)
    disk.free()
    ended = lodger.end(process, 120)
    check(ended, directory)
    assert "there is disk space again after" in ended.out


@pytest.mark.slow
@pytest.mark.parametrize("disk", ["ext4"], indirect=True)
def test_a_run_is_resumed_on_a_full_disk(lodger: User, disk: SmallDisk) -> None:
    """Its launcher and all else was killed; the next one continues as soon as there is disk space."""
    process = started(lodger, disk)
    directory = wait_for_steps(lodger, disk, 9)
    for pid in live_processes(lodger.marker):
        with suppress(ProcessLookupError):  # it had just ended
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=10)
    clear_leftovers(
        directory
    )  # the files that the next launcher removes first would free disk space
    for name in LEFT_BEHIND:
        (directory / name).unlink(missing_ok=True)
    disk.fill()
    process = lodger.start("run", "--resume", directory)
    lodger.wait_for(lambda: len(live_processes(lodger.marker)) > 0)
    disk.free()
    check(lodger.end(process, 120), directory)


@pytest.mark.slow
def test_a_run_that_has_no_room_to_begin_is_refused(lodger: User, disk: SmallDisk) -> None:
    disk.fill()
    ended = lodger.end(started(lodger, disk), 60)
    assert ended.exit_code == 2
    assert "run.directory: cannot write to" in ended.err
    assert "No space left on device; choose another folder" in ended.err
    assert [path.name for path in disk.path.iterdir()] == ["filler"]
