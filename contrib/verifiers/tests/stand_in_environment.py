"""The worker over environments without verifiers, which do what their argument ``does`` says."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_contrib_verifiers.verifiers_worker.service import Refusal, Spec, ToldTask, main

Json = dict[str, Any]


class StandIn:
    """Each role is asked twice; its reward is the length of the first answer."""

    def __init__(self, spec: Spec) -> None:
        if spec.environment != "sums":
            raise ModuleNotFoundError(f"No module named {spec.environment!r}")
        self._given = spec.arguments
        self._does = spec.arguments.get("does", "")
        self.roles = list(spec.arguments.get("roles", ["agent"]))

    def endless(self) -> bool:
        return self._does == "endless"

    def tasks(self) -> Iterator[ToldTask]:
        numbers = count() if self.endless() else range(self._given.get("count", 4))
        return (self.task(number) for number in numbers)

    def task(self, index: int) -> ToldTask:
        text, answer = f"{index}+{index}?", str(2 * index)
        return ToldTask(text, answer, [text, answer, self._given.get("salt")])

    async def play(self, index: int, roles: Mapping[str, Json]) -> Json:
        if self._does == "hangs":
            await self._hang()
        if self._does == "blocks":
            time.sleep(600)
        told = {}
        for role, player in roles.items():
            told[role] = await asyncio.to_thread(self._play, f"{index}+{index}?", player)
        if self._does == "raises":
            raise KeyError("no such door")
        if self._does == "refuses":
            raise Refusal("tool_call_error", "the box is gone")
        if self._does == "leaks":
            bytearray(1 << 30)
        if self._does == "dies":
            os._exit(7)
        if self._does == "exits":
            sys.exit(3)
        return {"roles": told}

    async def _hang(self) -> None:
        """With a program of its own, in a session of its own."""
        code = "import time, signal; signal.signal(15, 1); time.sleep(600)"
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        Path(self._given["pids"]).write_text(f"{os.getpid()} {child.pid}\n")
        try:
            await asyncio.sleep(600)
        finally:
            Path(self._given["pids"]).with_name("cancelled").touch()
            child.kill()

    def _play(self, question: str, player: Json) -> Json:
        said, recorded = [{"role": "user", "content": question}], []
        for more in ("sure?", ""):
            body = {
                "model": player["model"], "messages": said, "logprobs": True, "return_token_ids": True,
            }  # fmt: skip
            choice = _posted(f"{player['base_url']}/chat/completions", body)["choices"][0]
            logprobs = [each["logprob"] for each in choice["logprobs"]["content"]]
            recorded.append([choice["token_ids"], logprobs])
            said += [choice["message"], {"role": "user", "content": more}]
        if self._does == "lies":
            recorded[0][1][0] -= 0.5
        length = float(len(said[1]["content"] or ""))
        reward = {"nan": float("nan"), "words": "good", "array": np.ones(2)}.get(self._does, length)
        metrics = {"turns": np.float32(2), "odd": float("inf") if self._does == "odd" else None}
        trained = self._does != "untrained"
        return {"reward": reward, "trained": trained, "metrics": metrics, "recorded": recorded}


def _posted(url: str, body: Json) -> Json:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        reply: Json = json.load(response)
    return reply


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], StandIn))
