"""A standalone trainer: it implements the protocol of AstraFlow and uses none of its services.

    python trainer.py MODEL --policy solver

The address of the dataflow and the run's token come from ASTRAFLOW_DATAFLOW and ASTRAFLOW_TOKEN. What it trains is a
table of logits, by policy gradient; replace `Table` by your own model. docs/custom-trainer.md describes what the rest
has to do.
"""

from __future__ import annotations

import argparse
import hmac
import json
import logging
import os
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from astraflow_core.shared_secret import shared_secret
from astraflow_wire import batches, messages
from astraflow_wire.http import client
from astraflow_wire.model_files import tensor_file

log = logging.getLogger("custom_trainer")
BLOCK = 2 << 20


class Table:
    """Token `t` of a completion is drawn from softmax(logits[t]), whatever the prompt."""

    def __init__(self, vocabulary: int, positions: int = 16, lr: float = 100.0) -> None:
        self.logits, self.lr = np.zeros((positions, vocabulary)), lr

    def update(self, batch: Any) -> dict[str, float]:
        """One step up the gradient of the mean of advantage × log-prob over the trained tokens."""
        trained = batch.loss_mask.astype(np.int64)
        before = np.cumsum(trained) - trained
        place = np.minimum(
            before - before[batch.offsets[:-1]][batch.row_of_token], len(self.logits) - 1
        )
        share = batch.spread(batch.rewards - batch.group_mean) * batch.loss_mask / trained.sum()
        scaled = self.logits / batch.temperature
        probs = np.exp(scaled - scaled.max(-1, keepdims=True))
        probs /= probs.sum(-1, keepdims=True)
        gradient = np.zeros_like(self.logits)
        np.add.at(gradient, (place, batch.tokens), share)
        gradient -= np.bincount(place, weights=share, minlength=len(probs))[:, None] * probs
        self.logits += self.lr * gradient / batch.temperature
        logprobs = np.log(probs[place, batch.tokens])
        return {
            "loss": -float((share * logprobs).sum()), "lr": self.lr,
            "grad_norm": float(np.linalg.norm(gradient)), "tokens": float(len(batch.tokens)),
        }  # fmt: skip


class Weights:
    """Serves versions over the transport `http`: a manifest and a safetensors file, which has ranges."""

    def __init__(self, policy: str, token: str) -> None:
        self.policy, self.versions = policy, dict[int, tuple[bytes, bytes]]()
        authorization, versions = f"Bearer {token}", self.versions

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if not hmac.compare_digest(self.headers.get("Authorization", ""), authorization):
                    return self.send(401, b'{"error": "the token is missing or wrong"}')
                parts = self.path.strip("/").split("/")
                held = (
                    versions.get(int(parts[3])) if parts[:3] == ["v1", "weights", policy] else None
                )
                if held is None:
                    return self.send(404, b'{"error": "this version is not held"}')
                body = held[parts[4] == "data"]
                wanted = self.headers.get("Range", "").removeprefix("bytes=")
                if not wanted:
                    return self.send(200, body)
                first, _, last = wanted.partition("-")
                start, end = int(first), min(int(last or len(body)), len(body) - 1)
                part = {"Content-Range": f"bytes {start}-{end}/{len(body)}"}
                return self.send(206, body[start : end + 1], part)

            def do_DELETE(self) -> None:
                self.send(204, b"")

            def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def put(self, version: int, tensors: dict[str, np.ndarray]) -> messages.AnnouncementMessage:
        """Serve a version, and return its announcement. `tensors` are float32."""
        header, specs = tensor_file.lay_out((n, "F32", t.shape) for n, t in tensors.items())
        data = header + b"".join(tensors[spec.name].astype("<f4").tobytes() for spec in specs)
        blocks = [xxhash.xxh3_128_digest(data[i : i + BLOCK]) for i in range(0, len(data), BLOCK)]
        digest = xxhash.xxh3_128_hexdigest(b"".join(blocks))
        manifest = {
            "policy": self.policy, "version": version, "kind": "full", "size": len(data),
            "block_size": BLOCK, "tensors": specs, "blocks": blocks, "digest": digest,
        }  # fmt: skip
        self.versions[version] = msgspec.msgpack.encode(manifest), data
        return messages.AnnouncementMessage(
            policy=self.policy, version=version, transport="http", digest=digest, size=len(data),
            endpoints=[f"http://127.0.0.1:{self.server.server_port}"],
        )  # fmt: skip

    def retain(self, versions: list[int]) -> None:
        """Delete all versions but these and the newest."""
        for version in sorted(self.versions)[:-1]:
            if version not in versions:
                del self.versions[version]


class Trainer:
    """Registers, takes batches, announces versions, acknowledges, and releases what it has saved."""

    def __init__(self, table: Table, url: str, token: str, policy: str, saved: Path) -> None:
        self.table, self.policy, self.saved = table, policy, saved
        self.dataflow, self.weights = (
            client.SyncClient(url, token),
            Weights(policy, shared_secret(token)),
        )
        self.version, self.incarnation = -1, 0

    def run(self, save_every: int = 4) -> None:
        """Until there are no more batches. One that was killed continues from the state that it saved."""
        states = [0, *(int(file.stem) for file in self.saved.glob("*.npy"))]
        hello = messages.RegisterTrainer(
            policy=self.policy, pid=os.getpid(), host=socket.gethostname(), updates=tuple(states)
        )
        known = self.post("/v1/trainers/register", hello, messages.TrainerRegistered)
        updates, self.incarnation = known.updates, known.incarnation
        if updates:
            self.table.logits = np.load(self.saved / f"{updates}.npy")
        self.announce(known.highest_version + 1)  # a number is never used twice
        while not isinstance(batch := self.next_batch(), batches.NoBatch):
            metrics = self.table.update(batch)
            updates += 1
            self.announce(self.version + 1)
            done = messages.AcknowledgeBatch(
                policy=self.policy, batch=batch.id, version=self.version, metrics=metrics
            )
            answer = self.post("/v1/batches/ack", done, messages.BatchAcknowledged)
            self.weights.retain(answer.retain)
            if updates % save_every == 0:
                self.save(updates)
        self.save(updates)
        log.info("the end after %d updates: %s", updates, batch.reason)

    def next_batch(self) -> Any:
        while True:  # a long-poll: the answer may be that there is none yet
            asked = messages.NextBatch(
                policy=self.policy, version=self.version, wait_s=5.0, incarnation=self.incarnation
            )
            body = self.dataflow.post_for_bytes("/v1/batches/next", asked, deadline_s=60.0)
            batch = batches.decode_batch(body)
            if not isinstance(batch, batches.NoBatch) or batch.ended:
                return batch

    def announce(self, version: int) -> None:
        announcement = self.weights.put(version, {"logits": self.table.logits})
        answer = self.post("/v1/versions", announcement, messages.VersionAnnounced)
        self.version = version
        self.weights.retain(answer.retain)

    def save(self, updates: int) -> None:
        draft = self.saved / "draft"
        with draft.open("wb") as file:
            np.save(file, self.table.logits)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self.saved / f"{updates}.npy")  # before the batches are released
        self.post(
            "/v1/batches/release", messages.ReleaseBatches(policy=self.policy, updates=updates)
        )

    def post(self, path: str, message: messages.Message, reply: Any = messages.Done) -> Any:
        """Retry until the deadline while the dataflow is unreachable."""
        if self.incarnation:  # the number that register answered: every later call carries it
            message = msgspec.structs.replace(message, incarnation=self.incarnation)
        return self.dataflow.post(path, message, reply, deadline_s=60.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="folder whose config.json names the vocab_size")
    parser.add_argument("--policy", required=True)
    parser.add_argument("--saved", type=Path, default=Path("saved"), help="folder for its states")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    given.saved.mkdir(parents=True, exist_ok=True)
    table = Table(json.loads((given.model / "config.json").read_text())["vocab_size"])
    url, token = os.environ["ASTRAFLOW_DATAFLOW"], os.environ["ASTRAFLOW_TOKEN"]
    trainer = Trainer(table, url, token, given.policy, given.saved)
    try:
        trainer.run()
    except Exception as error:  # the run ends with this reason instead of at a deadline
        said = messages.TrainerFailed(policy=given.policy, error=f"{type(error).__name__}: {error}")
        trainer.post("/v1/trainers/failed", said)
        raise


if __name__ == "__main__":
    main()
