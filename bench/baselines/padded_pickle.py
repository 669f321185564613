"""Batches as a public asynchronous RL system serves them: padded, pickled, paced.

Restates: rows are dicts of ``[1, T]`` arrays (ids, loss mask, versions int32; log-probs float32; attention
mask bool) and of row values; a batch is made by taking rows out one by one, with a sleep of 50 ms after
every eight but the last, padding each key of each row to the longest and concatenating, and pickling the
whole; it travels over a new connection to a threaded HTTP server, and the client unpickles it.
Left out, in its favour: its locks, its statistics and torch.

``python -m bench.baselines.padded_pickle FILE ROWS LENGTH``; ``GET /batch`` with the sleep, ``GET /eager``
without.
"""

from __future__ import annotations

import http.client
import pickle
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np

from bench.support.processes import Service, announce

PACE, PAUSE_S = 8, 0.05
Rows = list[dict[str, Any]]


def make_rows(count: int, length: int) -> Rows:
    """A full buffer."""
    generator = np.random.default_rng(0)
    mask = (np.arange(length) >= length // 4)[None]
    return [
        {
            "input_ids": generator.integers(0, 50_000, (1, length), dtype=np.int32),
            "loss_mask": mask.astype(np.int32),
            "logprobs": np.where(mask, -generator.random((1, length)), 0).astype(np.float32),
            "versions": np.where(mask, 0, -1).astype(np.int32),
            "attention_mask": np.ones((1, length), np.bool_),
            "rewards": np.array([float(index % 2)], np.float32),
            "group_id": np.array([index // 8]),
            "group_reward_mean": np.array([0.5], np.float32),
            "group_reward_std": np.array([0.53], np.float32),
            "prompt_id": f"p{index // 8}",
        }
        for index in range(count)
    ]


def batch_of(rows: Rows, pause_s: float) -> bytes:
    """The rows as one pickled batch of padded arrays."""
    taken: Rows = []
    for row in rows:
        if pause_s and taken and len(taken) % PACE == 0:
            time.sleep(pause_s)
        taken.append(row)
    longest = max(row["input_ids"].shape[1] for row in taken)

    def padded(values: Any) -> Any:
        missing = longest - values.shape[1] if values.ndim == 2 else 0
        return np.pad(values, ((0, 0), (0, missing))) if missing else values

    batch: dict[str, Any] = {
        key: np.concatenate([padded(row[key]) for row in taken])
        for key in taken[0]
        if key != "prompt_id"
    }
    batch["prompt_id"] = [row["prompt_id"] for row in taken]
    return pickle.dumps({"batch": batch, "buffer_stats": {}})


def get_batch(service: Service, path: str) -> dict[str, Any]:
    """What its trainer does."""
    connection = http.client.HTTPConnection(*service.address)
    connection.request("GET", path)
    body = connection.getresponse().read()
    connection.close()
    return dict(pickle.loads(body)["batch"])


def serve(file: Path, rows: Rows) -> None:
    """Listen, say where, serve until killed."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = batch_of(rows, PAUSE_S if self.path == "/batch" else 0.0)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    announce(file, f"http://127.0.0.1:{server.server_address[1]}")
    server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]), make_rows(int(sys.argv[2]), int(sys.argv[3])))
