"""A live service whose users train the model: `python service.py RUN_DIRECTORY`. It ends with the run.

Each user asks for the nine's complement of two digits and likes an answer by the share of digits that are right. Needs
nothing but the standard library; a real service would use the client of OpenAI.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

USERS = 32
GONE_S = 120.0
NINES = str.maketrans("0123456789", "9876543210")


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, retry_after: str) -> None:
        self.status, self.retry_after_s = status, float(retry_after)
        super().__init__(f"the gateway answered {status}")


class Service:
    """A client of the gateway of a run, whose URL is in the run's directory."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._gateway = self._token = ""
        self.rewarded = 0

    def user(self, seed: int) -> None:
        """One user after the other, until the run is over."""
        drawn = random.Random(seed)
        while (episode := self._open()) is not None:
            digits = f"{drawn.randrange(100):02}"
            message = {"role": "user", "content": f"x{digits}="}
            body = {"model": "solver", "messages": [message]}
            try:
                said = self._call("chat/completions", body, episode["api_key"])
                answer = said["choices"][0]["message"]["content"]
                wanted = digits.translate(NINES)
                right = sum(a == b for a, b in zip(answer, wanted, strict=False))
                liked = right / max(len(wanted), len(answer))
                self._call(f"episodes/{episode['id']}/reward", {"reward": liked}, self._token)
                self.rewarded += 1
            except (OSError, HTTPException, Refused):
                continue  # the slot was taken back; _open shows whether the run has ended

    def _open(self) -> Any:
        """An episode, as soon as the run has a place for one; `None` when the run is over."""
        gone_since = None
        while gone_since is None or time.monotonic() < gone_since + GONE_S:
            try:
                self._find_gateway()
                return self._call("episodes", {}, self._token)
            except Refused as refused:
                if refused.status != 503:
                    raise
                time.sleep(refused.retry_after_s)
            except (OSError, HTTPException):
                # Not there yet, or started anew on another port, or over.
                if (self._run / "summary.json").exists():
                    return None
                gone_since = gone_since or time.monotonic()
                time.sleep(0.2)
        return None

    def _find_gateway(self) -> None:
        """Where the gateway is now."""
        files = list((self._run / "online").glob("*.json"))
        if not files:
            raise FileNotFoundError("no RaaS has announced its gateway yet")
        self._gateway = json.loads(files[0].read_text())["url"]
        self._token = (self._run / "online" / "token").read_text().strip()

    def _call(self, path: str, body: Any, key: str) -> Any:
        connection = HTTPConnection(urlsplit(self._gateway).netloc, timeout=60)
        try:
            headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
            connection.request("POST", f"/v1/{path}", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status >= 400:
                raise Refused(response.status, response.headers.get("retry-after", "0"))
            return json.load(response)
        finally:
            connection.close()


def main(run: Path) -> None:
    """Serve users until the run is over."""
    service = Service(run)
    users = [threading.Thread(target=service.user, args=(seed,)) for seed in range(USERS)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    sys.stdout.write(f"{service.rewarded} answers were rewarded\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
