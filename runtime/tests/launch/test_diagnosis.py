"""What a person is told when a run stands still or a process is stopped."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from launch_support import Command, Table, behaving, parsed, running

from astraflow_core.protocols.launcher import ProcessSpec, ProcessState, Role
from astraflow_runtime.launch.view.live import LiveView
from astraflow_runtime.launch.view.plain import PlainView
from astraflow_runtime.launch.view.views import View
from astraflow_runtime.launch.watch.diagnosis import FILE, Watchdog
from astraflow_wire.status import WaitStatus

pytestmark = pytest.mark.timeout(30)
Start = Callable[..., Command]
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

LOGS = {
    "dataflow": ["listening"],
    "trainer-solver": ["a", "b", "c", "d", "e", "published version 7"],
    "trainer-judge": [],
    "raas-0": [
        "00:00 raas-0 engine-solver INFO loading",
        "00:01 raas-0 INFO the engine of policy 'solver' started",
        "00:02 raas-0 engine-judge INFO loading",
    ],
    "raas-1": ["raas-1 registered"],
}


class Logs:
    """The part of a launcher that a watchdog uses."""

    def logs(self, name: str, lines: int) -> list[str]:
        return LOGS[name][-lines:]


class Said(list[str]):
    def say(self, message: str) -> None:
        self.append(message)


def role_of(name: str) -> Role:
    kind = name.partition("-")[0]
    return "raas" if kind == "raas" else "trainer" if kind == "trainer" else "dataflow"


class Scene:
    """A watchdog over five processes whose states the test sets."""

    def __init__(self, directory: Path, view: View | None = None) -> None:
        specs = [ProcessSpec(name, role_of(name), (), {}, directory / name) for name in LOGS]
        self.said, self.file = Said(), directory / FILE
        self.dog = Watchdog(specs, Logs(), directory, view or self.said)
        self.states = {
            name: ProcessState(name, pid, None) for pid, name in enumerate(LOGS, start=100)
        }

    def look(self, name: str = "", stopped: bool = False, cpu_s: float = 0.0) -> None:
        if name:
            before = self.states[name]
            self.states[name] = ProcessState(
                name, before.pid, None, cpu_s=before.cpu_s + cpu_s, stopped=stopped
            )
        self.dog.look(list(self.states.values()))

    def explain(self, *waits: tuple[str, str]) -> str:
        return self.dog.explain(
            "no progress for 9 s",
            [WaitStatus(who=who, for_whom=whom, what="w", since_s=9) for who, whom in waits],
        )


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    scene = Scene(tmp_path)
    scene.look()
    return scene


def named(text: str) -> list[str]:
    """The processes that the diagnosis names."""
    _, _, rest = text.partition("waiting for:\n")
    return [line.split()[0] for line in rest.splitlines() if line[:3] not in ("   ", "")]


def test_the_end_of_the_chain_is_named_with_its_last_lines(scene: Scene) -> None:
    text = scene.explain(("raas-0", "trainer solver, trainer judge"), ("trainer judge", "rollouts"))
    assert named(text) == ["trainer-solver", "raas-1"]
    assert "    published version 7" in text and "    b" in text
    assert "    a\n" not in text  # only the last five
    assert scene.file.read_text().count("no progress for 9 s") == 1
    assert "published version 7" in scene.file.read_text()


def test_a_full_disk_does_not_keep_a_diagnosis_from_being_told(scene: Scene) -> None:
    scene.file.symlink_to("/dev/full")
    assert named(scene.explain(("raas-0", "trainer solver"))) == ["trainer-solver"]
    scene.file.unlink()
    scene.file.mkdir()
    with pytest.raises(IsADirectoryError):
        scene.explain(("raas-0", "trainer solver"))


def test_when_everybody_waits_all_are_named(scene: Scene) -> None:
    waits = [("raas-0", "trainers"), ("raas-1", "trainers")]
    waits += [("trainer solver", "rollouts"), ("trainer judge", "rollouts")]
    assert sorted(named(scene.explain(*waits))) == sorted(set(LOGS) - {"dataflow"})


def test_an_engine_host_is_named_with_its_lines_in_the_log_of_its_raas(scene: Scene) -> None:
    text = scene.explain(
        ("trainer solver", "rollouts"),
        ("raas-0", "the engine host of policy 'solver' in raas-0"),
        ("raas-1", "trainer solver"),
    )
    assert "  the engine host of policy 'solver' in raas-0; its last lines:" in text
    assert "engine-solver INFO loading" in text and "engine of policy 'solver' started" in text
    assert "engine-judge" not in text


def test_busy_and_idle_are_distinguished(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    from astraflow_runtime.launch.watch import diagnosis

    later = diagnosis.active_time() + 10
    monkeypatch.setattr(diagnosis, "active_time", lambda: later)
    scene.look("raas-0", cpu_s=9.0)
    text = scene.explain(("trainer solver", "rollouts"))
    assert "raas-0 (pid 103) is busy: 9.0 s of CPU in the last 10 s" in text
    assert "raas-1 (pid 104) is idle: 0.0 s of CPU in the last 10 s" in text
    scene.dog.mark()
    monkeypatch.setattr(diagnosis, "active_time", lambda: later + 10)
    assert "raas-0 (pid 103) is idle" in scene.explain(("trainer solver", "rollouts"))


def test_a_stopped_process_is_named_once_and_again_when_it_continues(scene: Scene) -> None:
    for _ in range(3):
        scene.look("raas-1", stopped=True)
    (said,) = scene.said
    assert said.startswith("raas-1 is stopped (SIGSTOP)") and "`kill -CONT 104`" in said
    assert scene.dog.any_stopped
    text = scene.explain(("raas-0", "trainer solver"))
    assert named(text) == ["raas-1", "trainer-solver"] and "has been stopped for" in text
    scene.look("raas-1")
    assert scene.said[1].startswith("raas-1 continues after")
    assert not scene.dog.any_stopped


@pytest.mark.parametrize("live", [True, False])
def test_a_diagnosis_is_whole_in_either_view(table: Table, tmp_path: Path, live: bool) -> None:
    stream = io.StringIO()
    view = LiveView(parsed(table), stream) if live else PlainView(parsed(table), stream)
    scene = Scene(tmp_path, view)
    scene.look()
    text = scene.explain(("raas-0", "the engine host of policy 'solver' in raas-0"))
    view.say(text)
    view.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    assert " ".join(text.split()) in " ".join(shown.split())


@pytest.mark.slow
@ON_LINUX
def test_a_stopped_dataflow_is_named_and_waited_for(table: Table, command: Start) -> None:
    table["run"] |= {"deadline_s": 1.0}
    started = command(behaving(table, rate=3))
    directory = started.wait_for("dataflow.pid", "raas-0.pid", "trainer-solver.pid", "fake_state")
    pid = int((directory / "dataflow.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 15
    while not (directory / FILE).exists():  # written when the silence is reported
        assert time.monotonic() < deadline, "nobody reports that the dataflow is stopped"
        time.sleep(0.05)
    os.kill(pid, signal.SIGCONT)
    code, out, err = started.end()
    assert (code, err) == (0, "")
    assert (
        out.count(f"dataflow is stopped (SIGSTOP); the run waits for it; `kill -CONT {pid}`") == 1
    )
    assert out.count("the dataflow has not responded for") == 1
    assert "launcher waits" in out and "for dataflow: an answer, 5 s at most: /v1/status" in out
    assert f"dataflow (pid {pid}) has been stopped for" in out
    assert "dataflow continues after" in out and "the dataflow responds again after" in out
    assert (directory / FILE).read_text().count("has not responded") == 1
    assert "no progress" not in out


@pytest.mark.slow
@ON_LINUX
def test_a_dataflow_that_stays_stopped_fails_the_run_in_the_end(
    table: Table, command: Start
) -> None:
    table["run"] |= {"deadline_s": 0.6}
    started = command(behaving(table, rate=1))
    directory = started.wait_for("dataflow.pid", "raas-0.pid", "trainer-solver.pid", "fake_state")
    os.kill(int((directory / "dataflow.pid").read_text()), signal.SIGSTOP)
    code, _, err = started.end()
    assert code == 1
    assert "astraflow: the dataflow has not responded for" in err and "has been stopped for" in err
    assert running(directory) == []
    assert (directory / FILE).read_text().count("has not responded") == 2
