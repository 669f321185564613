"""The same calls as other libraries process them, in an interpreter with the packages ``openenv`` and ``renderers``:
``python oracles.py`` reads a line of JSON from its standard input and writes one.

``openenv``: the sequences of the graph of OpenEnv's capture, and what its checks find wrong. ``renderers``: the prompt of each
request by the renderer of Qwen3, bridged from the ids of the call before if that can be, else rendered as a whole.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import types
from pathlib import Path
from typing import Any


class Tokenizer:
    """The one of the scripted policies: bytes, pairs of digits, and some texts that are a token each."""

    name_or_path = "scripted"
    unk_token_id = None

    def __init__(self, pairs: int, specials: dict[str, int], end: int) -> None:
        self._pairs, self._specials, self.eos_token_id = pairs, specials, end
        self._texts = {token: text for text, token in specials.items()}
        self._parts = re.compile("|".join([*map(re.escape, specials), r"\d\d"]), re.ASCII)

    def encode(self, text: str, *_: Any, **__: Any) -> list[int]:
        ids: list[int] = []
        at = 0
        for part in self._parts.finditer(text):
            ids += text[at : part.start()].encode()
            ids.append(self._specials.get(part[0], -1))
            if ids[-1] < 0:
                ids[-1] = self._pairs + int(part[0])
            at = part.end()
        return [*ids, *text[at:].encode()]

    def decode(self, token_ids: Any, *_: Any, **__: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        known = (
            bytes([token]) if token < 256
            else (self._texts.get(token) or f"{token - self._pairs:02}").encode()
            for token in ids
        )  # fmt: skip
        return b"".join(known).decode("utf-8", "replace")

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        return self._specials[tokens]


def openenv(calls: list[dict[str, Any]]) -> dict[str, Any]:
    """The sequences of OpenEnv's graph."""
    # The package's own initialisation imports all that its servers need; these two modules need nothing.
    found = importlib.util.find_spec("openenv")
    assert found is not None and found.submodule_search_locations
    capture = types.ModuleType("capture")
    folder = Path(next(iter(found.submodule_search_locations))) / "core" / "harness" / "capture"
    capture.__path__ = [str(folder)]
    sys.modules["capture"] = capture
    graphs = importlib.import_module("capture.graph")
    checks = importlib.import_module("capture.validate")
    graph, wrong = graphs.RolloutGraph(), []
    for at, call in enumerate(calls):
        wrong += checks.check_turn(call["prompt"], call["sampled"], call["logprobs"]).fatal
        node = graphs.TurnNode(
            node_id=str(at), index=at, prompt_ids=call["prompt"], sampled_ids=call["sampled"],
            sampled_logprobs=call["logprobs"], finish_reason=call["finish"],
        )  # fmt: skip
        graph.add_turn(node)
    sequences = graph.sequences()
    for each in sequences:
        wrong += checks.check_sequence(each).fatal
    wrong += checks.check_rollout(graph).fatal
    return {
        "sequences": [
            {"tokens": each.input_ids, "mask": each.loss_mask, "logprobs": each.logprobs, "calls": each.node_ids}
            for each in sequences
        ],
        "discarded": [node.node_id for node in graph.discarded_nodes()],
        "wrong": [str(each) for each in wrong],
    }  # fmt: skip


def renderers(given: dict[str, Any]) -> list[dict[str, Any]]:
    """The prompt of each request by the renderer of Qwen3; ``bridged`` says how it was made."""
    tokenizer = Tokenizer(**given["tokenizer"])
    renderer = importlib.import_module("renderers.qwen3").Qwen3Renderer(tokenizer)
    told = []
    for asked in given["asked"]:
        tools, messages = asked["tools"] or None, asked["messages"]
        bridged = None
        if (before := asked["before"]) is not None:
            call = given["calls"][before]
            said = [at for at, each in enumerate(messages) if each["role"] == "assistant"]
            new = messages[said[-1] + 1 :]
            bridged = renderer.bridge_to_next_turn(
                call["prompt"], call["sampled"], new, tools=tools
            )
        ids = (
            renderer.render_ids(messages, tools=tools, add_generation_prompt=True)
            if bridged is None
            else bridged.token_ids
        )
        told.append({"prompt": ids, "bridged": bridged is not None})
    return told


def main() -> None:
    """Read, build, write."""
    given = json.loads(sys.stdin.read())
    told = {"openenv": openenv(given["calls"]), "renderers": renderers(given)}
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
