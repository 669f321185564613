"""A stand-in for the process of a vLLM server: it serves just enough to be started, and then fails as the variable
``FAKE_VLLM`` says, with the messages of vLLM 0.32. Run as ``vllm serve`` would be."""

from __future__ import annotations

import http.server
import json
import os
import socketserver
import sys
import time

HOW = os.environ["FAKE_VLLM"]
UPDATES: list[str] = []
"""Those that are done; the first is that of the engine's start."""


class Handler(http.server.BaseHTTPRequestHandler):
    def address_string(self) -> str:
        return "-"

    def do_GET(self) -> None:
        answers = {
            "/version": {"version": "0.32.0"},
            "/v1/models": {"data": [{"id": "m", "max_model_len": 64}]},
        }
        if self.path == "/metrics":
            drafts = b"vllm:spec_decode_num_drafts_total 0.0\n" if HOW == "drafts" else b""
            self._answer(b'vllm:generation_tokens_total{engine="0"} 7.0\n' + drafts)
        else:
            self._answer(json.dumps(answers.get(self.path, {})).encode())

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = self.path.partition("?")[0]
        if path == "/inference/v1/generate":
            self._generate()
        elif path == "/finish_weight_update":
            UPDATES.append(path)
        elif path == "/update_weights" and HOW == "crash-mid-update" and UPDATES:
            _die("RuntimeError: a worker of the fake ended", 1)
        self._answer(b"{}")

    def _generate(self) -> None:
        if HOW == "out-of-memory":
            _die("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", 1)
        if HOW == "killed":
            os.kill(os.getpid(), 9)
        if HOW == "hang":
            time.sleep(600)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def _die(last_words: str, code: int) -> None:
    sys.stderr.write(f"{last_words}\n")
    os._exit(code)


def main() -> None:
    if HOW == "port-taken":
        _die("OSError: [Errno 98] Address already in use", 1)
    Server(sys.argv[sys.argv.index("--uds") + 1], Handler).serve_forever()


if __name__ == "__main__":
    main()
