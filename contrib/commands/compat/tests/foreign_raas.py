"""A rollout service of the public protocol, written from the description of that protocol alone: it shares no code and
no names with the package under test. A table of logits stands for the model.

    python foreign_raas.py MODEL REGISTER_URL UID [FAULT]
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import zmq


class Bomb:
    """Runs a command if it is unpickled by plain pickle."""

    def __reduce__(self):
        return os.system, ("touch bomb-went-off",)


class WeightReceiver:
    """Fetches the weights from a sender: full, or the words that changed."""

    def __init__(self, host: str, http_port: int, delta: bool) -> None:
        self.host, self.key, self.delta = host, f"{host}:{http_port}", delta
        self.http_port, self.buffer, self.version = http_port, None, 0
        self.modes: list[str] = []

    def call(self, path: str, body: dict | None = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.sender}{path}", data)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read())

    def pull(self, sender: str, version: int) -> dict[str, np.ndarray]:
        first = self.buffer is None
        self.sender = sender
        if first:
            info = self.call("/get_buffer_info")
            self.length, self.meta = info["single_buffer_length"], info["tensors_meta"]
            self.buffer = bytearray(self.length)
            self.listener = socket.create_server((self.host, 0), backlog=8)
            self.signals = zmq.Context.instance().socket(zmq.PULL)
            port = self.signals.bind_to_random_port(f"tcp://{self.host}")
            told = self.call("/register_sglang_instance", {
                "sglang_http_host": self.host, "sglang_http_port": self.http_port,
                "session_ids": [f"{self.host}:{self.listener.getsockname()[1]}"],
                "buffer_ptr": 1, "buffer_length": self.length, "zmq_endpoint": self.host,
                "zmq_port": port, "handshake_ports": [], "sender_group_index": 0,
            })  # fmt: skip
            assert told["trainer_session_ids"] and told["trainer_buffer_length"] == 2 * self.length
        able = self.call("/get_capabilities")
        useful = able.get("delta_ready") and able["delta_base_version"] == self.version
        mode = "delta" if useful and self.delta and self.version else "full"
        incoming = bytearray(self.length)
        receiving = threading.Thread(target=self.receive, args=(incoming,))
        receiving.start()
        answer = self.call("/request_transfer", {"instance_id": self.key, "mode": mode})
        receiving.join(30)
        assert answer["ok"], answer
        assert self.signals.poll(10_000) and self.signals.recv_multipart() == [b"0", b"0"]
        assert answer["version"] == version
        if mode == "full":
            self.buffer = incoming
        else:
            count, size, flags, zero = struct.unpack_from("<QHHi", incoming)
            assert (size, flags, zero) == (2, 0, 0)
            at = np.frombuffer(incoming, "<u4", count, 16)
            words = np.frombuffer(self.buffer, "<u2").copy()
            words[at] = np.frombuffer(incoming, "<u2", count, 16 + 4 * count)
            self.buffer = bytearray(words.tobytes())
        self.version = version
        self.modes.append(mode)
        found, start = {}, 0
        for name, (shape, dtype) in self.meta:
            count = int(np.prod(shape))
            assert dtype == "float32"
            found[name] = np.frombuffer(self.buffer, "<f4", count, start).reshape(shape)
            start += 4 * count
        assert start == self.length
        return found

    def receive(self, incoming: bytearray) -> None:
        connection, _ = self.listener.accept()
        with connection:
            header = connection.recv(16, socket.MSG_WAITALL)
            offset, length = struct.unpack("<QQ", header)
            view = memoryview(incoming)[offset : offset + length]
            while view:
                view = view[connection.recv_into(view) :]
            connection.sendall(b"\x01")


class Service:
    """Tasks, workflows and one model."""

    def __init__(self, model: Path, fault: str = "") -> None:
        self.vocabulary = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"]
        self.texts = {token: text for text, token in self.vocabulary.items()}
        self.end = json.loads((model / "config.json").read_text())["eos_token_id"]
        self.logits = np.zeros((1, len(self.vocabulary)))
        self.version, self.fault, self.random = 0, fault, np.random.default_rng(0)
        self.lock, self.workflows = threading.Lock(), {}
        self.done = {"": [], "eval_": []}
        self.count = {"": 0, "eval_": 0}
        self.calls: list[str] = []
        self.receiver: WeightReceiver | None = None
        self.leave = os._exit

    def get(self, path: str) -> dict:
        if path == "/status":
            return {"status": "ready", "message": ""}
        return {"available": 8, "inflight": 0, "max_concurrency": 8}

    def post(self, path: str, body: dict):
        self.calls.append(path)
        with self.lock:
            return getattr(self, "do_" + path[1:])(**body)

    def do_register_workflow(self, workflow_id, workflow_cls, gconfig_overrides, **more):
        assert workflow_cls == "digits" and more["reward_fn"] == "positions"
        self.workflows[workflow_id] = gconfig_overrides
        return {}

    def do_submit(self, data, workflow_id="default", lane=""):
        number = self.count[lane]
        self.count[lane] += 1
        if self.fault == "dies":
            self.leave(1)
        if self.fault != "silent":
            self.done[lane].append({"task_id": number, "result": self.play(data, workflow_id)})
        return {"task_id": number}

    def do_pull(self, max_items=256, timeout=0.0):
        found, self.done[""] = self.done[""][:max_items], self.done[""][max_items:]
        return found

    def do_eval_submit(self, **body):
        return self.do_submit(**body, lane="eval_")

    def do_eval_pull(self, max_items=64, timeout=0.0):
        found, self.done["eval_"] = self.done["eval_"][:max_items], self.done["eval_"][max_items:]
        return {"items": found, "inflight": 0, "pending": 0, "total_submitted": self.count["eval_"]}

    def do_reset_training_engine(self, timeout=5.0):
        assert not self.done[""]
        return {
            "ready_for_eval": True,
            "cancelled": 0,
            "stragglers": 0,
            "sglang_running": 0,
            "reset_epoch": 1,
        }

    def do_eval_start(self):
        self.count["eval_"] = 0
        return {}

    def do_eval_end(self):
        return {}

    def do_notify_version(self, model_id, version, sender_endpoint):
        if version <= self.version:
            return {
                "ok": True,
                "model_id": model_id,
                "pulled": False,
                "reason": f"version={version} <= local={self.version}",
            }
        if self.fault != "lies":
            self.logits = np.asarray(
                self.receiver.pull(sender_endpoint, version)["logits"], np.float64
            )
        self.version = version
        return {
            "ok": True,
            "model_id": model_id,
            "version": version,
            "pull_result": {"mode": "full"},
        }

    def do_shutdown(self):
        threading.Timer(0.1, self.leave, (0,)).start()
        return "shutting down"

    def play(self, data, workflow_id):
        if self.fault == "rejects":
            return None
        if self.fault == "fails":
            return {"ok": False, "error": "RuntimeError('out of ideas')"}
        wanted, answer = self.workflows[workflow_id], str(data["answer"])
        prompt = [self.vocabulary[character] for character in data["prompt"]]
        trajectories, rewards = [], []
        for _ in range(wanted["n_samples"]):
            tokens, logprobs = [], []
            while len(tokens) < wanted["max_new_tokens"] and self.end not in tokens[-1:]:
                row = self.logits[min(len(tokens), len(self.logits) - 1)] / wanted["temperature"]
                row = row - np.log(np.exp(row - row.max()).sum()) - row.max()
                tokens.append(int(self.random.choice(len(row), p=np.exp(row) / np.exp(row).sum())))
                logprobs.append(float(row[tokens[-1]]))
            text = "".join(self.texts[token] for token in tokens if token != self.end)
            rewards.append(sum(map(str.__eq__, text, answer)) / max(len(text), len(answer), 1))
            given, got = len(prompt), len(tokens)
            pad = 2  # as other sequences of a batch would make it
            sequence = {
                "input_ids": np.array([prompt + tokens + [0] * pad], np.int32),
                "loss_mask": np.array([[0] * given + [1] * got + [0] * pad], np.int32),
                "logprobs": np.array([[0.0] * given + logprobs + [0.0] * pad], np.float32),
                "versions": np.array([[-1] * given + [self.version] * got + [0] * pad], np.int32),
                "attention_mask": np.array([[1] * (given + got) + [0] * pad], bool),
            }
            if self.fault == "shape":
                sequence["logprobs"] = sequence["logprobs"][:, 1:]
            if self.fault == "version":
                sequence["versions"] = np.where(sequence["loss_mask"] == 1, 999, -1)
            if self.fault == "logprob":
                sequence["logprobs"] = sequence["logprobs"] + 1.0
            trajectories.append({"sequences": [sequence], "stats": {}})
        found = {"n_trajs": len(trajectories), "rewards": rewards, "trajectories": trajectories}
        if self.fault == "bomb":
            found["stats"] = Bomb()
        return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, kind):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(200, json.dumps(self.server.service.get(self.path)).encode(), "application/json")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            told, status = (
                {"ok": True, "result": self.server.service.post(self.path, pickle.loads(body))},
                200,
            )
        except Exception as error:  # noqa: BLE001
            told, status = {"ok": False, "error": repr(error)}, 500
        self.reply(status, pickle.dumps(told), "application/octet-stream")


def serve(model: Path, fault: str = "", delta: bool = True) -> ThreadingHTTPServer:
    """A server on loopback, with its ``service``; it answers in threads once ``serve_forever`` runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.service = Service(model, fault)
    server.service.receiver = WeightReceiver("127.0.0.1", server.server_port, delta)
    return server


def register(base: str, uid: str, port: int) -> dict:
    """Join the pool."""
    told = {"uid": uid, "raas_url": f"http://127.0.0.1:{port}", "gpu_count": 0}
    request = urllib.request.Request(
        f"{base}/register_raas", json.dumps(told).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read())


if __name__ == "__main__":
    running = serve(Path(sys.argv[1]), *sys.argv[4:5])
    threading.Thread(target=running.serve_forever, daemon=True).start()
    register(sys.argv[2], sys.argv[3], running.server_port)
    while True:
        time.sleep(60)
