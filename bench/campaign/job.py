"""A run under faults: two policies, three RaaS (one of them far, behind a link), evaluation, checkpoints and records."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from astraflow_core.errors import AstraFlowError, DeadlineExceeded
from astraflow_testing.runs import live_processes
from astraflow_wire.http.client import SyncClient
from bench.campaign.links import HERE, Links, certificate
from bench.campaign.marks import append, given_file
from bench.support import trees

T = TypeVar("T")
POLICIES = ("solver", "verifier")
FAR = "far"
RUNTIME = "astraflow_runtime"
HOST = "astraflow_engine_host.main"
START_S, END_S, POLL_S = 60.0, 60.0, 0.05
REPLAY_S = 300.0
CALL_S = 1.0

CONFIG = """
[run]
name = "chaos"
steps = 1000000
max_staleness = 2
group_size = 4
episode_deadline_s = 10
deadline_s = 20
lease_s = 2
task_attempts = 1000

[prompts]
use = "digits"
digits = 2

[workflow]
use = "solver_verifier"
template = "{prompt}{answer};"

[reward]
use = "exact"
partial = "positions"
each_policy = true

[sampling]
max_tokens = 3

[raas]
replicas = 2
max_concurrent_episodes = 16

[eval]
every = 20
sets.held_out = { use = "digits", digits = 2, split = "held_out" }

[checkpoint]
every = 5

[journal]
record_mb = 200

[launcher]
use = "local"
restarts = 100000
"""
POLICY = """
[policies.{policy}]
model = "tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1"
batch_sequences = 16
engine = {{ use = "bench.campaign.marks:MarkingEngine" }}
trainer = {{ use = "bench.campaign.marks:CheckingTrainer", step_s = 0.1 }}
algorithm = {{ use = "astraflow_testing.table:TableAlgorithm" }}
transport = {{ use = "http", port = {port}, advertise = "http://127.0.0.1:{link}" }}
"""
MAX_STALENESS = 2


class RunEnded(Exception):
    """The run ended although it should have continued; the text has the end of its logs."""


class Job:
    """The run in ``folder``, from its first update to its end."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self.marker = f"astraflow-chaos-{os.getpid()}-{seed}"
        self.links = Links()
        self.launcher: subprocess.Popen[bytes] | None = None
        self.far: subprocess.Popen[bytes] | None = None
        self.far_starts = 0
        self._began = time.monotonic()

    def __enter__(self) -> Job:
        try:
            self._open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _open(self) -> None:
        dataflow, *publishers = _free_ports(1 + len(POLICIES))
        public, context = certificate(self._folder)
        self.proxy = self.links.add(dataflow, context)
        self.door = self.links.add(self.proxy.port)
        self.weights = [self.links.add(port) for port in publishers]
        text = CONFIG + f"\n[dataflow]\nport = {dataflow}\n"
        for policy, port, link in zip(POLICIES, publishers, self.weights, strict=True):
            text += POLICY.format(policy=policy, port=port, link=link.port)
        self._config = self._folder / "job.toml"
        self._config.write_text(text)
        root = str(Path(__file__).resolve().parents[2])
        self._environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "ASTRAFLOW_TEST_MARKER": self.marker,
            "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
            "SSL_CERT_FILE": str(public),
        }
        runs = self._folder / "runs"
        self._options = ["--set", f"run.directory='{runs}'", "--set", f"run.seed={self._seed}"]
        self.launch("run", str(self._config), "--no-live", *self._options)
        self.wait(lambda: any(runs.glob("*/dataflow.json")), "its dataflow")
        (self.directory,) = runs.iterdir()
        self._client = SyncClient(f"http://{HERE}:{dataflow}", self.token)
        self._updates = {policy: Updates(self.directory, policy) for policy in POLICIES}
        self.start_far()
        self.progress(since=0.0, deadline_s=START_S)

    def __exit__(self, *_: object) -> None:
        """Kill all processes that are left."""
        for process in (self.launcher, self.far):
            if process is not None and process.poll() is None:
                trees.kill(process.pid)
                process.wait()
        for pid in live_processes(self.marker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.links.close()

    @property
    def token(self) -> str:
        """The token of the run."""
        return (self.directory / "token").read_text().strip()

    def launch(self, *arguments: str) -> None:
        """Start a launcher."""
        self.launcher = self._start(*arguments, log="launcher.log")

    def start_far(self) -> None:
        """Start the far RaaS: it reaches the dataflow over TLS, through the link."""
        self.far_starts += 1
        self.far = self._start(
            "raas", str(self._config), *self._options, "--name", FAR,
            "--directory", str(self._folder / FAR), "--token-file", str(self.directory / "token"),
            "--dataflow", f"https://{HERE}:{self.door.port}", log="far.log",
        )  # fmt: skip

    def _start(self, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        with (self._folder / log).open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "astraflow_runtime", *arguments],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill_all(self) -> None:
        """`kill -9` of the launcher and all its processes."""
        assert self.launcher is not None
        trees.kill(self.launcher.pid)
        self.launcher.wait()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def resume(self) -> None:
        """What a user does next."""
        self.launch("run", "--resume", str(self.directory), "--no-live")

    def lost_power(self) -> None:
        """Mark the loss of power in the notes of the trained batches."""
        for policy in POLICIES:
            append(given_file(self.directory, policy), {"lost_power": True})

    def pids(self) -> list[int]:
        """Every process of the run but the far RaaS and its own."""
        assert self.far is not None
        apart = trees.tree(self.far.pid)
        return [pid for pid in live_processes(self.marker) if pid not in apart]

    def present(self) -> dict[str, int | None]:
        """Role → pid of its process, ``None`` while it is not there."""
        assert self.launcher is not None and self.far is not None
        here, far = trees.tree(self.launcher.pid), trees.tree(self.far.pid)

        def pid_of(tree: dict[int, trees.Process], *words: str) -> int | None:
            return next((p.pid for p in tree.values() if {*words} <= {*p.words}), None)

        return {
            "raas": pid_of(here, RUNTIME, "raas", "raas-0"),
            "other_raas": pid_of(here, RUNTIME, "raas", "raas-1"),
            "far_raas": pid_of(far, RUNTIME, "raas", FAR),
            "engine_host": pid_of(here, HOST),
            "far_engine_host": pid_of(far, HOST),
            "dataflow": pid_of(here, RUNTIME, "dataflow"),
            **{f"trainer_{name}": pid_of(here, RUNTIME, "trainer", name) for name in POLICIES},
        }

    def status(self) -> dict[str, Any] | None:
        """The status of the dataflow; ``None`` while it does not reply."""
        try:
            return dict(self._client.get_json("/v1/status", deadline_s=CALL_S))
        except (AstraFlowError, OSError):
            return None

    def balance(self) -> dict[str, Any]:
        """As ``/v1/balance``."""
        return dict(self._client.get_json("/v1/balance", deadline_s=END_S))

    def whole(self) -> bool:
        """Whether every service is up and at work, and none serves a version that is too old."""
        status = self.status()
        if status is None or status["state"] != "running" or status["held_back"]:
            return False
        alive = [each for each in status["raas"] if each["state"] == "alive"]
        present = self.present()
        if len(alive) != 3 or None in present.values():
            return False
        if {each["pid"] for each in alive} - set(present.values()):
            return False  # one of them is dead, and the dataflow has not noticed it yet
        policies = status["policies"]
        if any(policies[policy]["trainer"] != "here" for policy in POLICIES):
            return False
        behind = [
            policies[policy]["version"] - each["serving"].get(policy, -1)
            for policy in POLICIES
            for each in alive
        ]
        return bool(max(behind) <= MAX_STALENESS + 1)

    def made(self, policy: str) -> list[dict[str, Any]]:
        """The lines of all updates of a policy, repeated ones among them."""
        updates = Updates(self.directory, policy)
        updates.refresh()
        return updates.every

    def progress(self, since: float, deadline_s: float) -> float:
        """When every service was up and every policy had made two updates since ``since``.
        :class:`DeadlineExceeded` if that did not happen."""

        def reached() -> float | None:
            if self.far is not None and self.far.poll() is not None:
                self.start_far()
            made = [self._updates[policy].second_after(since) for policy in POLICIES]
            late = None in made or not self.whole()
            return None if late else time.time()

        return self.wait(reached, "all of it made progress", deadline_s)

    def wait(self, look: Callable[[], T | None], what: str, deadline_s: float = START_S) -> T:
        """Poll until the result is true, and return it."""
        end = time.monotonic() + deadline_s
        while (found := look()) is None or not found:
            self._check_alive(what)
            if time.monotonic() > end:
                raise DeadlineExceeded("the run", what, deadline_s)
            time.sleep(POLL_S)
        return found

    def _check_alive(self, what: str) -> None:
        if self.launcher is not None and (code := self.launcher.poll()) is not None:
            raise RunEnded(f"the run ended with {code} before {what}:\n{self.last_words()}")

    def last_words(self) -> str:
        """The end of the logs of launcher and far RaaS."""
        texts = []
        for name in ("launcher.log", "far.log"):
            file = self._folder / name
            if file.exists():
                texts.append(f"--- {name}\n" + "\n".join(file.read_text().splitlines()[-12:]))
        return "\n".join(texts)

    def stop(self) -> dict[str, Any]:
        """Ctrl-C; the summary of the run."""
        assert self.launcher is not None and self.far is not None
        self.launcher.send_signal(signal.SIGINT)
        self.launcher.wait(END_S)
        if self.far.poll() is None:
            self.far.send_signal(signal.SIGTERM)
        self.far.wait(END_S)
        return dict(json.loads((self.directory / "summary.json").read_text()))

    def left(self) -> int:
        """Processes that still exist some seconds after the end."""
        end = time.monotonic() + 5
        while (found := live_processes(self.marker)) and time.monotonic() < end:
            time.sleep(0.1)
        return len(found)

    def replayed(self) -> subprocess.CompletedProcess[str]:
        """`astraflow replay` of what is recorded; exit code 124 if that takes ``REPLAY_S`` longer than the run did."""
        command = [sys.executable, "-m", "astraflow_runtime", "replay", str(self.directory)]
        command += ["--trainer", "step_s=0"]
        allowed = REPLAY_S + time.monotonic() - self._began
        try:
            return subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=allowed, check=False
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"not done after {allowed:.0f} s")


class Updates:
    """The updates of a policy in the growing ``metrics.jsonl``."""

    def __init__(self, directory: Path, policy: str) -> None:
        self._path, self._policy, self._read = directory / "metrics.jsonl", policy, 0
        self._inode = -1
        self.every: list[dict[str, Any]] = []

    def refresh(self) -> None:
        """Read on; from the beginning again where a resumed run wrote the file anew."""
        if self._path.exists():
            with self._path.open("rb") as file:
                now = os.fstat(file.fileno())
                if now.st_ino != self._inode or now.st_size < self._read:
                    self._inode, self._read, self.every = now.st_ino, 0, []
                file.seek(self._read)
                whole, end, _ = file.read().rpartition(b"\n")
            self._read += len(whole) + len(end)
            lines = map(json.loads, whole.splitlines())
            self.every += [x for x in lines if "step" in x and x["policy"] == self._policy]

    def second_after(self, since: float) -> float | None:
        """When the second update after ``since`` was made."""
        self.refresh()
        late: list[float] = []
        for line in reversed(self.every):
            if line["time"] <= since:
                break
            if not line["again"]:
                late.append(line["time"])
        return late[-2] if len(late) > 1 else None


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_server((HERE, 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in opened]
