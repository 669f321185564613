"""An MCP server of the standard library alone, which starts quickly: a dial that is to be turned to a number.

``python dial_server.py [score]``: ``score`` is what the tool of that name answers instead.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

dial = {"at": 0, "target": 0}


def begin(target: int = 3, seed: int = 0) -> str:
    dial.update(at=0, target=target + seed % 2)
    return f"The dial is at 0; turn it to {dial['target']}. ({os.getpid()})"


def turn(by: int) -> str:
    dial["at"] += by
    return f"It is at {dial['at']}."


def type_in(text: str) -> str:
    return turn(int(text))


def show(content: list[dict[str, str]]) -> list[dict[str, str]]:
    """As the result what it is given, of whatever types."""
    return content


def finish() -> str:
    return "Done."


def die() -> str:
    sys.exit(3)


def score(reply: str = "") -> str:
    if len(sys.argv) > 1:
        return sys.argv[1]
    off = abs(dial["at"] - dial["target"])
    return json.dumps({"score": 1.0 - off / max(1, dial["target"]), "off": off, "said": reply})


NUMBER, TEXT = {"type": "integer"}, {"type": "string"}
TOOLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "begin": (begin, {"target": NUMBER, "seed": NUMBER}),
    "turn": (turn, {"by": NUMBER}),
    "type_in": (type_in, {"text": TEXT}),
    "show": (show, {"content": {"type": "array"}}),
    "finish": (finish, {}),
    "die": (die, {}),
    "score": (score, {"reply": TEXT}),
}


def answered(method: str, given: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        version = given["protocolVersion"]
        info = {"name": "dial", "version": "1"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        listed = [
            {"name": name, "inputSchema": {"type": "object", "properties": fields}}
            for name, (_, fields) in TOOLS.items()
        ]
        return {"tools": listed}
    if method == "tools/call":
        try:
            shown, wrong = TOOLS[given["name"]][0](**given.get("arguments") or {}), False
        except (TypeError, ValueError) as error:
            shown, wrong = str(error), True
        if isinstance(shown, str):
            shown = [{"type": "text", "text": shown}]
        return {"content": shown, "isError": wrong}
    return None


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        result = answered(asked["method"], asked.get("params") or {})
        unknown = {"error": {"code": -32601, "message": f"no method {asked['method']}"}}
        told = {"result": result} if result is not None else unknown
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **told}) + "\n")
        sys.stdout.flush()
