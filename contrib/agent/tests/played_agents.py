"""Agents that tests run; they call the gateway with the standard library alone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from types import SimpleNamespace
from typing import Any


def ask(task: Any, *said: str, **more: Any) -> str:
    return str(asked(task, *said, **more)["choices"][0]["message"]["content"])


def asked(task: Any, *said: str, **more: Any) -> Any:
    messages = [
        {"role": "user" if at % 2 == 0 else "assistant", "content": text}
        for at, text in enumerate(said)
    ]
    body = {"model": task.models[0], "messages": messages, **more}
    request = urllib.request.Request(
        f"{task.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {task.api_key}", "content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def two_turns(task: Any) -> float:
    first = ask(task, task.data["prompt"])
    ask(task, task.data["prompt"], first, "sure?")
    return float(len(first))


def credits_turns(task: Any) -> dict[str, Any]:
    """The second of two replies to one prompt, and a turn that continues it."""
    first = asked(task, task.data["prompt"], n=2)
    said = first["choices"][1]["message"]["content"]
    second = asked(task, task.data["prompt"], said, "sure?")
    turns = [
        {"id": first["id"], "choice": 1, "reward": 0.25, "state": "door"},
        {"id": second["id"], "reward": 0.75},
    ]
    return {"reward": 1.0, "turns": turns, **task.data.get("also", {})}


async def in_a_loop(task: Any) -> dict[str, float]:
    await asyncio.to_thread(ask, task, task.data["prompt"])
    return {"p": 0.5}


def without_reward(task: Any) -> None:
    """Ask every policy."""
    for model in task.models:
        ask(task, task.data["prompt"], model=model)


def ask_all_twice(task: Any) -> None:
    for model in task.models:
        said = ask(task, task.data["prompt"], model=model)
        ask(task, task.data["prompt"], said, "sure?", model=model)


def silent(task: Any) -> float:
    return 1.0


def broken(task: Any) -> float:
    ask(task, "x")
    raise KeyError("no such door")


def dies(task: Any) -> float:
    ask(task, "x")
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def odd(task: Any) -> Any:
    ask(task, "x")
    return "good"


def endless(task: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = "import time, signal; signal.signal(15, 1); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    with open(task.data["pids"], "w") as file:
        file.write(f"{os.getpid()} {child.pid}\n")
    while True:
        time.sleep(1)


if __name__ == "__main__":
    endless(SimpleNamespace(**json.loads(sys.stdin.readline())))
