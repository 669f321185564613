"""Calls GET /v1/health repeatedly until its input ends. It writes a line when the first call is answered, and at the end
the seconds of each call as JSON.

    python -m bench.support.health_calls URL

A process of its own, so that what the benchmark does beside it does not delay a call.
"""

from __future__ import annotations

import http.client
import json
import select
import sys
import time
from urllib.parse import urlsplit

from bench.support.processes import TOKEN

PAUSE_S = 0.005
DEADLINE_S = 30.0


def main() -> None:
    """Entry point."""
    place = urlsplit(sys.argv[1])
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=DEADLINE_S)
    seconds = []
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        began = time.perf_counter()
        connection.request("GET", "/v1/health", headers={"authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        answer.read()
        seconds.append(time.perf_counter() - began)
        if answer.status != 200:
            raise SystemExit(f"health was answered {answer.status}")
        if len(seconds) == 1:
            print("calling", flush=True)
    json.dump(seconds, sys.stdout)


if __name__ == "__main__":
    main()
