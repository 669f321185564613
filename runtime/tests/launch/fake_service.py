"""A service without its work: ``fake_service.py ROLE NAME DIRECTORY BEHAVIOUR STEPS_PER_S``, standard
library only, so that a test starts many."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

STEPS = 20
role, name, directory, behaviour, rate = sys.argv[1:6]
if role == "dataflow":
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
else:  # the import takes as long as all the rest
    BaseHTTPRequestHandler = object
home = Path(directory)
began = time.monotonic()
stopped = threading.Event()


def write(path, text):
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(text)
    draft.rename(path)


def first_time():
    """Whether this process is the first of its name to come here."""
    came = home / f"{name}.came"
    if came.exists():
        return False
    came.touch()
    return True


def ended(name):
    """Whether the launcher has seen the end of a process: it was waited for, so that nothing is left of it."""
    file = home / f"{name}.pid"
    if not file.exists():
        return False
    try:
        os.kill(int(file.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


class Flow:
    state, reason, logged, steps, asked = "running", "rolling out and training", 0, 0, 0

    def go_on(self):
        """As a journal would have it."""
        left = home / "fake_state"
        if left.exists() and left.read_text() == "finished":
            self.state, self.steps, self.logged = "finished", STEPS, STEPS

    def held(self):
        """Whether to stay at half of the steps: until a file exists or a process has ended, and the launcher, which
        polls everything between two requests, has had the time to notice it."""
        kind, _, what = behaviour.partition(":")
        if kind not in ("hold", "outlive"):
            return False
        self.asked += ended(what) if kind == "outlive" else (home / what).exists()
        return self.asked < 4

    def stands_still(self):
        """Whether to make no steps, for ever or for some seconds, without a visible wait."""
        kind, _, seconds = behaviour.partition(":")
        return kind == "stand_still" and time.monotonic() - began < float(seconds or "inf")

    def leave(self):
        """At the first request after the trainer failed: write the reason to a file, and exit."""
        failed = home / "trainer-solver.did"
        if behaviour != "leave" or not failed.exists():
            return
        self.state, self.reason = "failed", "the trainer of 'solver' failed: the loss is nan"
        write(home / "status.json", json.dumps({"pid": os.getpid(), **self.look()}))
        os._exit(0)

    def wait(self):
        until = 0.0 if self.stands_still() else 5.0
        wait = {"who": "trainer solver", "for_whom": "rollouts", "what": "4 more sequences"}
        return wait | {"since_s": 1.0, "until_s": until}

    def look(self):
        if self.state == "running" and not self.stands_still():
            most = STEPS // 2 if self.held() else STEPS
            self.steps = min(most, int((time.monotonic() - began) * float(rate)))
        with (home / "metrics.jsonl").open("a") as file:
            while self.logged < self.steps:
                self.logged += 1
                step = {"policy": "solver", "step": self.logged, "reward": self.logged / STEPS}
                file.write(
                    json.dumps({"time": time.time(), **step, "metrics": {"loss": 1.0}}) + "\n"
                )
        if self.steps == STEPS and self.state == "running":
            self.state = "finished"
        if behaviour == "fail" and self.steps > 3:
            self.state, self.reason = (
                "failed",
                "8 tasks failed in a row: reward 'r' raised ValueError",
            )
        write(home / "fake_state", self.state)
        return {
            "state": self.state,
            "reason": self.reason,
            "eta_s": 1.5,
            "steps": self.steps,
            "waits": [self.wait()],
            "policies": {
                "solver": {
                    "version": self.steps,
                    "updates": self.steps,
                    "buffered": 4,
                    "in_flight": 2.5,
                    "rows": {"accepted": 8 * self.steps, "trained": 8 * self.steps},
                    "reward": self.steps / STEPS,
                    "metrics": {"loss": 0.5, "grad_norm": None},
                    "max_staleness_seen": 1,
                    "staleness": {"0": 10, "1": 6},
                    "trainer_wait_fraction": 0.25,
                }
            },
            "tasks": {"admitted": 9, "accepted": 5, "rejected": 2, "failed": 1, "set_aside": 1},
            "raas": [{"name": "raas-0", "state": "alive", "serving": {"solver": 3}, "running": 2}],
            "eval": {
                "history": [
                    {"versions": {"solver": 0}, "sets": {"held_out": {"avg": 0.125, "n": 8}}},
                    {"versions": {"solver": 9}, "sets": {"held_out": {"avg": 0.875, "n": 8}}},
                ]
            },
            "tokens_generated": 100 * self.steps,
            "tokens_trained": 80 * self.steps,
        }


flow = Flow()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _send(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _allowed(self):
        if self.headers["authorization"] == "Bearer " + os.environ["ASTRAFLOW_TOKEN"]:
            return True
        self._send(401, b'{"error": "token"}')
        return False

    def do_GET(self):
        if self._allowed():
            flow.leave()
            self._send(200, json.dumps(flow.look()).encode())
            told = flow.state == "finished"
            if behaviour == "die_at_end" and told and first_time():
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def do_POST(self):
        if behaviour == "die_at_stop" and first_time():
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "hang_at_stop" and first_time():
            os.kill(os.getpid(), signal.SIGSTOP)
        (home / "stop_asked").touch()
        self.rfile.read(int(self.headers["content-length"]))
        if self._allowed():
            if behaviour != "ignore_stop":
                flow.state = "stopped"
                flow.look()
            self._send(200, b"\x80", "application/msgpack")

    def log_message(self, *arguments):
        pass


def dataflow():
    if behaviour == "die_early" and first_time():
        os.kill(os.getpid(), signal.SIGKILL)
    flow.go_on()
    before = home / "dataflow.json"
    port = json.loads(before.read_text())["url"].rpartition(":")[2] if before.exists() else 0
    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host, port = server.server_address[:2]
    write(home / "dataflow.json", json.dumps({"url": f"http://{host}:{port}", "pid": os.getpid()}))
    while not stopped.wait(0.1) and time.monotonic() - began < 60:
        pass  # a signal that another thread receives does not end a wait


def worker():
    assert os.environ["ASTRAFLOW_DATAFLOW"].startswith("http://127.0.0.1:")
    (home / f"{name}.threads").write_text(os.environ["OMP_NUM_THREADS"])
    if behaviour == "child":
        import subprocess

        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        write(home / f"{name}.child", str(child.pid))
    while not stopped.wait(0.05):
        state = home / "fake_state"
        if state.exists() and state.read_text() in ("finished", "stopped", "failed"):
            if behaviour == "die_saving" and first_time():
                os.kill(os.getpid(), signal.SIGKILL)
            while behaviour.startswith("save_after:") and not (
                (home / behaviour.removeprefix("save_after:")).exists()
            ):
                time.sleep(0.05)
            while behaviour.startswith("outlive:") and not ended(
                behaviour.removeprefix("outlive:")
            ):
                time.sleep(0.05)
            break
        if time.monotonic() - began < 0.2:
            continue
        if behaviour == "warn":
            os.write(
                1, f"2026-01-01T00:00:00.000 WARNING {name} low on memory free_mb=3\n".encode()
            )
        first = not (home / f"{name}.did").exists()
        if first:
            (home / f"{name}.did").touch()
        if behaviour.startswith("exit"):
            sys.stderr.write(f"astraflow: {name} does not like this\n")
            sys.exit(int(behaviour.removeprefix("exit")))
        if behaviour == "die" or (behaviour == "die_once" and first):
            os.kill(os.getpid(), signal.SIGKILL)
    if role == "trainer":
        (home / "checkpoint").write_text("saved")


if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
if behaviour == "port":
    sys.stderr.write("astraflow: cannot listen on port 80: Address already in use\n")
    sys.exit(2)
if (home / f"{name}.pid").exists():
    (home / f"{name}.back").touch()
write(home / f"{name}.pid", str(os.getpid()))
dataflow() if role == "dataflow" else worker()
