"""The plan, the local launcher and what it says about ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from launch_support import Table, parsed

from astraflow_core.errors import RunFailed, UserError
from astraflow_core.protocols.launcher import ProcessSpec, ProcessState
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_runtime.launch.local.config import LocalLauncherConfig
from astraflow_runtime.launch.local.launcher import LocalLauncher
from astraflow_runtime.launch.local.threads import threads_each, usable_cores
from astraflow_runtime.launch.planning.plan import plan, reaching
from astraflow_runtime.launch.watch.exit_status import (
    KEEP_STATE,
    describe_end,
    error_of,
    last_error,
)
from astraflow_runtime.launch.watch.logwatch import LogWatch
from astraflow_runtime.launch.watch.restarts import Restarts
from astraflow_wire.http.access import Access, Grant
from astraflow_wire.http.auth import bearer
from astraflow_wire.http.raas_client import ORIGIN, START

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def launcher(tmp_path: Path) -> LocalLauncher:
    run = RunInfo("r", 0, 1, 0, ("solver",), tmp_path)
    return LocalLauncher(LocalLauncherConfig(), ComponentContext(run, "launcher", "", 0, tmp_path))


def spec_of(tmp_path: Path, code: str) -> ProcessSpec:
    return ProcessSpec(
        "p", "raas", (sys.executable, "-S", "-c", code), {}, tmp_path / "logs" / "p.log"
    )


def state_at_end(launcher: LocalLauncher) -> ProcessState:
    until = time.monotonic() + 10
    while (state := launcher.poll()[0]).exit_code is None and time.monotonic() < until:
        time.sleep(0.01)
    return state


def test_the_plan(table: Table, tmp_path: Path) -> None:
    table["policies"]["solver"]["trainer"] |= {"python": "/env/bin/python", "ranks": 2}
    table["policies"]["verifier"] = table["policies"]["solver"]
    config = parsed(table)
    specs = plan(config, tmp_path, "secret-token", 3)
    names = ["dataflow", "trainer-solver", "trainer-verifier", "raas-0", "raas-1"]
    assert [spec.name for spec in specs] == names
    assert not any("secret-token" in part for spec in specs for part in spec.argv)
    assert all(spec.environment["ASTRAFLOW_TOKEN"] == "secret-token" for spec in specs)
    file, home = str(tmp_path / "config.toml"), str(tmp_path)
    trainer = specs[1].argv
    assert trainer[:3] == ("/env/bin/python", "-m", "torch.distributed.run")
    assert trainer[-8:] == (
        "-m",
        "astraflow_runtime",
        "trainer",
        file,
        "--directory",
        home,
        "--policy",
        "solver",
    )
    assert trainer[trainer.index("--nproc-per-node") + 1] == "2"
    assert trainer[trainer.index("--max-restarts") + 1] == "3"
    assert specs[4].argv[-2:] == ("--name", "raas-1")
    origins = [spec.environment.get(ORIGIN) for spec in specs]
    assert origins[:3] == [None] * 3 and origins[3] == origins[4] and origins[3]
    assert origins[3] != plan(config, tmp_path, "secret-token", 3)[3].environment[ORIGIN]
    url = "http://127.0.0.1:1"
    assert reaching(specs[0], url, tmp_path).environment["ASTRAFLOW_TOKEN"] == "secret-token"
    access = Access("secret-token")
    for spec, role, name in ((specs[1], "trainer", "solver"), (specs[4], "raas", "raas-1")):
        own = reaching(spec, url, tmp_path).environment
        assert own == {
            **spec.environment,
            "ASTRAFLOW_DATAFLOW": url,
            "ASTRAFLOW_TOKEN": own["ASTRAFLOW_TOKEN"],
        }
        assert access.grant(bearer(own["ASTRAFLOW_TOKEN"])["authorization"]) == Grant(role, name)
    assert threads_each(specs, policies=2, cores=17) == 2
    assert threads_each(specs, policies=2, cores=1) == 1


def test_a_process_that_is_started_anew_knows_how_often(tmp_path: Path) -> None:
    launcher, view = Mock(restarts=3), Mock()
    ended = ProcessState("p", 1, exit_code=-9, restarts=1)
    Restarts(launcher, view, ()).start(ended, spec_of(tmp_path, ""))
    (started,) = launcher.start.call_args.args
    assert started.environment == {START: "2"}


def test_cores_are_held_to_the_quota_of_a_container(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    everything = usable_cores(tmp_path / "none")
    quota.write_text("max 100000\n")
    assert usable_cores(quota) == everything
    quota.write_text("50000 100000\n")
    assert usable_cores(quota) == 1


def test_output_exit_code_and_cpu_time(launcher: LocalLauncher, tmp_path: Path) -> None:
    code = "import time\nwhile time.process_time() < 0.2: pass\nprint('one\\ntwo', flush=True); raise SystemExit(3)"
    launcher.start(spec_of(tmp_path, code))
    state = state_at_end(launcher)
    assert state.exit_code == 3
    assert state.last_lines == ("one", "two")
    assert launcher.logs("p", 1) == ["two"]
    assert 0.2 <= state.cpu_s < 2
    launcher.start(spec_of(tmp_path, "print('three')"))
    again = state_at_end(launcher)
    assert (again.exit_code, again.restarts) == (0, 1)
    assert again.cpu_s > state.cpu_s
    assert launcher.logs("p", 9) == ["one", "two", "three"]


def test_threads_are_set_unless_the_environment_says_otherwise(
    launcher: LocalLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path, "import os; print(os.environ['OMP_NUM_THREADS'])")
    launcher.prepare([spec])
    launcher.start(spec)
    assert state_at_end(launcher).last_lines == (str(usable_cores()),)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    launcher.start(spec)
    assert state_at_end(launcher).last_lines[-1] == "7"


def test_a_process_is_not_started_twice(launcher: LocalLauncher, tmp_path: Path) -> None:
    launcher.start(spec_of(tmp_path, "import time; time.sleep(30)"))
    with pytest.raises(ValueError, match="still running"):
        launcher.start(spec_of(tmp_path, ""))
    launcher.close()


def test_stop_asks_and_then_kills(launcher: LocalLauncher, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    deaf = (
        "import signal, time, subprocess, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(30)']); "
        f"open({str(ready)!r} + '.tmp', 'w').write(str(child.pid)); "
        f"import os; os.rename({str(ready)!r} + '.tmp', {str(ready)!r}); time.sleep(30)"
    )
    launcher.start(spec_of(tmp_path, deaf))
    while not ready.exists():
        time.sleep(0.01)
    launcher.stop("p", 0.2)
    assert launcher.poll()[0].exit_code == -signal.SIGKILL
    child = int(ready.read_text())
    until = time.monotonic() + 2
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    launcher.start(spec_of(tmp_path, "import time; time.sleep(30)"))
    launcher.stop("p", 5.0)
    assert launcher.poll()[0].exit_code == -signal.SIGTERM


def test_a_process_that_is_stopped_is_asked_too(launcher: LocalLauncher, tmp_path: Path) -> None:
    code = (
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
        # A signal that comes just before a sleep begins is handled after it.
        "print('up', flush=True)\nwhile True: time.sleep(0.02)"
    )
    launcher.start(spec_of(tmp_path, code))
    until = time.monotonic() + 10
    while not launcher.logs("p", 1):
        assert time.monotonic() < until
        time.sleep(0.02)
    os.kill(launcher.poll()[0].pid, signal.SIGSTOP)
    launcher.stop("p", 15)
    assert launcher.poll()[0].exit_code == 7


def test_the_terminal_does_not_reach_a_process(launcher: LocalLauncher, tmp_path: Path) -> None:
    launcher.start(spec_of(tmp_path, "import time; time.sleep(30)"))
    pid = launcher.poll()[0].pid
    assert os.getsid(pid) == pid != os.getsid(0)
    launcher.close()
    assert launcher.poll()[0].exit_code == -signal.SIGKILL


def test_a_command_that_is_not_there_is_the_users_mistake(
    launcher: LocalLauncher, tmp_path: Path
) -> None:
    log = tmp_path / "p.log"
    launcher.start(ProcessSpec("p", "trainer", ("/nowhere/python",), {}, log))
    error = error_of(state_at_end(launcher), "")
    assert isinstance(error, UserError)
    assert "cannot start '/nowhere/python': No such file or directory" in str(error)


def test_ends_in_words() -> None:
    assert describe_end(ProcessState("a", 1, -9)) == "a was killed by SIGKILL"
    assert describe_end(ProcessState("a", 1, 3), "at once") == "a ended with exit code 3 at once"
    trace = ("Traceback (most recent call last):", "ValueError: no")
    error = error_of(ProcessState("a", 1, 2, 0, trace), "at once")
    assert isinstance(error, RunFailed), (
        "exit code 2 without a message is a crash (argparse, shells)"
    )
    assert "ValueError: no" in str(error)


def test_the_last_complaint_is_found() -> None:
    lines = ["astraflow: first", "noise", "astraflow: 2 problems", "  run.steps: bad"]
    assert last_error(lines) == "2 problems\n  run.steps: bad"
    logged = ["2026-01-01T00:00:00.000 ERROR raas-0 raas-0 ends: no weights", "    traceback"]
    assert last_error(logged) == "raas-0 ends: no weights"
    assert last_error(["nothing"]) == ""


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "raas-0.log"
    watch = LogWatch([log])
    assert list(watch.news()) == []
    begin = "2026-01-01T00:00:00.000 WARNING raas-0"
    with log.open("a") as file:
        file.write(f"{begin} slow by 3 s\n{begin} ha")
        file.flush()
        assert list(watch.news()) == ["raas-0: slow by 3 s"]
        file.write("lf\n" + f"{begin} slow by 4 s\n2026-01-01T00:00:00.000 INFO raas-0 fine\n")
        file.flush()
        assert list(watch.news()) == ["raas-0: half"]


def test_a_cause_is_reported_once_however_many_tasks_it_fails(tmp_path: Path) -> None:
    logs = [tmp_path / "raas-0.log", tmp_path / "raas-1.log"]
    begin = "2026-01-01T00:00:00.000 WARNING raas-0"
    cause = "KeyError: 'answr' (mine.py:4)"
    for log in logs:
        lines = [
            f"{begin} task train-{n} failed: reward 'r' raised on prompt 'q{n}x': {cause}"
            for n in range(9)
        ]
        log.write_text("\n".join(lines) + f"\n{begin} slow\n")
    ends = f"8 tasks failed in a row; the last: reward 'r' raised on prompt 'z': {cause}"
    first, *others = watch_of(logs).news()
    assert first.startswith("raas-0: task train-0 failed: reward 'r' raised on prompt 'q0x'")
    assert first.endswith("; more messages of this kind are in the logs")
    assert others == ["raas-0: slow", "raas-1: slow"]
    assert list(watch_of(logs).news([ends])) == ["raas-0: slow", "raas-1: slow"]
    logs[0].write_text(
        f"{begin} RaaS 'raas-0' gets no more tasks: {ends}. The other RaaS continue\n"
    )
    assert list(watch_of(logs[:1]).news([ends])) == []


def watch_of(logs: list[Path]) -> LogWatch:
    """A watch that was made before anything was written to the logs."""
    contents = [log.read_text() if log.exists() else "" for log in logs]
    for log in logs:
        log.write_text("")
    watch = LogWatch(logs)
    for log, content in zip(logs, contents, strict=True):
        log.write_text(content)
    return watch


def test_the_last_lines_are_quoted_only_if_no_cause_was_given() -> None:
    ordinary = "2026-01-01T00:00:00.000 INFO trainer-solver published version 3"
    trace = ("Traceback (most recent call last):", '  File "mine.py", line 5', "ValueError: no")
    silent = str(error_of(ProcessState("a", 1, 1, 0, (ordinary, *trace)), "at once"))
    assert "a ended with exit code 1 at once\nThe last lines of a:\n  Traceback" in silent
    assert "published" not in silent
    told = "the trainer of 'solver' failed: algorithm 'mine:A' raised ValueError: no (mine.py:5)"
    assert str(error_of(ProcessState("a", 1, 1, 0, trace), "at once", told)) == told
    more = "2026-01-01T00:00:00.000 ERROR a algorithm 'mine:A' raised ValueError: no (mine.py:5); see x"
    state = ProcessState("a", 1, 1, 0, (more, *trace))
    assert str(error_of(state, "at once", told)) == f"{told}; see x"
    killed = ProcessState("a", 1, -9, 0, (ordinary,))
    assert str(error_of(killed, "at once")) == "a was killed by SIGKILL at once"


def test_output_that_is_not_utf8_is_read(launcher: LocalLauncher, tmp_path: Path) -> None:
    line = b"2026-01-01T00:00:00.000 WARNING p bad \\xff\\xc3 bytes\\n"
    code = f"import os; os.write(1, {line!r}); os.write(2, b'\\x80 end\\n')".replace("\\\\", "\\")
    spec = spec_of(tmp_path, code)
    watch = LogWatch([spec.log])
    launcher.start(spec)
    state = state_at_end(launcher)
    assert state.exit_code == 0
    assert state.last_lines[-1] == "\ufffd end"
    assert launcher.logs("p", 1) == ["\ufffd end"]
    assert list(watch.news()) == ["p: bad \ufffd\ufffd bytes"]


TORCHRUN = """\
E1122 15:08:07.457000 371 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 397) of binary: python
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_15:08:07
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 397)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 397
============================================================
"""


def test_a_rank_that_was_killed_names_its_signal_and_the_remedy(tmp_path: Path) -> None:
    lines = tuple(TORCHRUN.splitlines())
    state = ProcessState("trainer-solver", 1, 1, 0, lines, 0.0)
    said = "trainer-solver ended because rank 1 was killed by SIGKILL (out of memory?)"
    assert describe_end(state) == said
    error = str(error_of(state, "while the run continued", remedy=KEEP_STATE))
    assert error.startswith(f"{said} while the run continued. All its updates are lost.")
    assert "Set [checkpoint] every" in error
    failed = ProcessState("trainer-solver", 1, 1, 0, ("KeyError: 'layer 7'",), 0.0)
    assert "[checkpoint]" not in str(error_of(failed, "", remedy=KEEP_STATE))
    log = tmp_path / "trainer-solver.log"
    log.touch()
    watch = LogWatch([log])
    for _ in range(2):  # each is reported
        with log.open("a") as file:
            file.write(TORCHRUN)
        (message,) = watch.news()
        assert "trainer-solver: rank 1 was killed by SIGKILL" in message
        assert "all ranks start again" in message
