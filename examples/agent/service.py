"""The agent of `examples/agent_service.toml`, as a service: `python service.py [PORT]`. It needs the client of OpenAI alone.

One process plays all episodes, many at once, with one client: what a client costs to make (its certificates, tens of
milliseconds of CPU) is paid once, and connections to the gateway are used again.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from openai import OpenAI

PORT = 8766


def play(client: OpenAI, task: dict[str, Any]) -> None:
    """One episode: ask once. The reward of the run scores the answer, since the reply to the run names none."""
    episode = client.with_options(base_url=task["base_url"], api_key=task["api_key"])
    episode.chat.completions.create(
        model=task["models"][0],
        messages=[{"role": "user", "content": task["data"]["prompt"]}],
    )


class Tasks(BaseHTTPRequestHandler):
    """The run posts a task; the answer ends its episode."""

    server: Service

    def do_POST(self) -> None:
        """Play, then answer. What fails here has failed for the run, which shows why and tries the task again."""
        task = json.loads(self.rfile.read(int(self.headers["content-length"])))
        try:
            play(self.server.client, task)
        except Exception as error:  # noqa: BLE001 - the run gets the error
            self._answer(500, {"error": str(error)})
        else:
            self._answer(200, {})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        said = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: a line for each episode would be many."""


class Service(ThreadingHTTPServer):
    """A thread for each episode, all with one client."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), Tasks)
        self.client = OpenAI(base_url="http://127.0.0.1", api_key="that of an episode")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The run does not wait for the answer any more: the episode missed its deadline, or the run has ended."""
        sys.stderr.write(f"an episode was not answered: {sys.exc_info()[1]!r}\n")


def main(port: int) -> None:
    """Serve until the process is ended."""
    with Service(port) as service:
        sys.stdout.write(f"http://127.0.0.1:{service.server_port}\n")
        sys.stdout.flush()
        service.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PORT)
