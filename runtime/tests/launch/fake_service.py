"""A service without its work: ``fake_service.py ROLE NAME DIRECTORY BEHAVIOUR STEPS_PER_S``. A test starts many, and most of
what one costs are its imports: ``_signal`` is what ``signal`` gives names to, and http.server costs more than all others."""

import _signal as signal
import os
import sys
import time

STEPS = 20
role, name, directory, behaviour, rate = sys.argv[1:6]
if role == "dataflow":
    import json
    import select
    import socket
began = time.monotonic()
stopped = []


def path(name):
    return os.path.join(directory, name)


def read(name):
    """Empty if there is no such file."""
    try:
        with open(path(name)) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def write(name, text=""):
    draft = path(f"{name}.{os.getpid()}")
    with open(draft, "w") as file:
        file.write(text)
    os.rename(draft, path(name))


def exists(name):
    return os.path.exists(path(name))


def first_time():
    """Whether this process is the first of its name to come here."""
    came = exists(f"{name}.came")
    write(f"{name}.came")
    return not came


def ended(name):
    """Whether the launcher has seen the end of a process: it was waited for, so that nothing is left of it."""
    pid = read(f"{name}.pid")
    try:
        if pid:
            os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False


class Flow:
    state, reason, logged, steps, asked = "running", "rolling out and training", 0, 0, 0
    dies_at = float("inf")

    def go_on(self):
        """As a journal would have it."""
        if read("fake_state") == "finished":
            self.state, self.steps, self.logged = "finished", STEPS, STEPS

    def held(self):
        """Whether to stay at half of the steps: until a file exists or a process has ended, and the launcher, which
        polls everything between two requests, has had the time to notice it."""
        kind, _, what = behaviour.partition(":")
        if kind not in ("hold", "outlive"):
            return False
        self.asked += ended(what) if kind == "outlive" else exists(what)
        return self.asked < 4

    def stands_still(self):
        """Whether to make no steps, for ever or for some seconds, without a visible wait."""
        kind, _, seconds = behaviour.partition(":")
        return kind == "stand_still" and time.monotonic() - began < float(seconds or "inf")

    def leave(self):
        """At the first request after the trainer failed: write the reason to a file, and exit."""
        if behaviour != "leave" or not exists("trainer-solver.did"):
            return
        self.state, self.reason = "failed", "the trainer of 'solver' failed: the loss is nan"
        write("status.json", json.dumps({"pid": os.getpid(), **self.look()}))
        os._exit(0)

    def wait(self):
        until = 0.0 if self.stands_still() else 5.0
        wait = {"who": "trainer solver", "for_whom": "rollouts", "what": "4 more sequences"}
        return wait | {"since_s": 1.0, "until_s": until}

    def look(self):
        if self.state == "running" and not self.stands_still():
            most = STEPS // 2 if self.held() else STEPS
            self.steps = min(most, int((time.monotonic() - began) * float(rate)))
        with open(path("metrics.jsonl"), "a") as file:
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
        write("fake_state", self.state)
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


STATUS = {200: "OK", 401: "Unauthorized"}


def answered(method, headers, body):
    """The status of a request, and the body of its answer."""
    if method == "POST":
        if behaviour == "die_at_stop" and first_time():
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "hang_at_stop" and first_time():
            os.kill(os.getpid(), signal.SIGSTOP)
        write("stop_asked")
    if headers.get("authorization") != "Bearer " + os.environ["ASTRAFLOW_TOKEN"]:
        return 401, b'{"error": "token"}'
    if method == "POST":
        if behaviour != "ignore_stop":
            flow.state = "stopped"
            flow.look()
        return 200, b"\x80"
    flow.leave()
    status = flow.look()
    if behaviour == "die_at_end" and flow.state == "finished" and first_time():
        flow.dies_at = time.monotonic() + 0.3
    return 200, json.dumps(status).encode()


def received(connection):
    """More of a request; :class:`ConnectionError` at its end."""
    part = connection.recv(65536)
    if not part:
        raise ConnectionResetError
    return part


def serve(connection):
    """Answer one request."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += received(connection)
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    pairs = [line.partition(":") for line in lines]
    headers = {key.lower(): value.strip() for key, _, value in pairs}
    while len(body) < int(headers.get("content-length", 0)):
        body += received(connection)
    status, answer = answered(first.split()[0], headers, body)
    kind = "application/msgpack" if answer == b"\x80" else "application/json"
    told = f"HTTP/1.1 {status} {STATUS[status]}\r\ncontent-type: {kind}\r\n"
    connection.sendall(f"{told}content-length: {len(answer)}\r\n\r\n".encode() + answer)


def dataflow():
    if behaviour == "die_early" and first_time():
        os.kill(os.getpid(), signal.SIGKILL)
    flow.go_on()
    before = read("dataflow.json")
    port = json.loads(before)["url"].rpartition(":")[2] if before else 0
    listener = socket.create_server(("127.0.0.1", int(port)))
    host, port = listener.getsockname()
    write("dataflow.json", json.dumps({"url": f"http://{host}:{port}", "pid": os.getpid()}))
    connections = []
    while not stopped and time.monotonic() - began < 60:
        for ready in select.select([listener, *connections], [], [], 0.1)[0]:
            if ready is listener:
                connections.append(listener.accept()[0])
                continue
            try:
                serve(ready)
            except ConnectionError:
                connections.remove(ready)
        if time.monotonic() > flow.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)


def goes_on():
    """After a moment."""
    time.sleep(0.05)
    return not stopped


def worker():
    assert os.environ["ASTRAFLOW_DATAFLOW"].startswith("http://127.0.0.1:")
    write(f"{name}.threads", os.environ["OMP_NUM_THREADS"])
    if behaviour == "child":
        import subprocess

        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
        write(f"{name}.child", str(child.pid))
    while goes_on():
        if read("fake_state") in ("finished", "stopped", "failed"):
            if behaviour == "die_saving" and first_time():
                os.kill(os.getpid(), signal.SIGKILL)
            while behaviour.startswith("save_after:") and not exists(
                behaviour.removeprefix("save_after:")
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
        first = not exists(f"{name}.did")
        write(f"{name}.did")
        if behaviour.startswith("exit"):
            sys.stderr.write(f"astraflow: {name} does not like this\n")
            sys.exit(int(behaviour.removeprefix("exit")))
        if behaviour == "die" or (behaviour == "die_once" and first):
            os.kill(os.getpid(), signal.SIGKILL)
    if role == "trainer":
        write("checkpoint", "saved")


if behaviour == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
if behaviour == "port":
    sys.stderr.write("astraflow: cannot listen on port 80: Address already in use\n")
    sys.exit(2)
if exists(f"{name}.pid"):
    write(f"{name}.back")
write(f"{name}.pid", str(os.getpid()))
dataflow() if role == "dataflow" else worker()
