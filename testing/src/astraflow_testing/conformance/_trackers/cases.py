"""A run as a tracker sees it."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

from astraflow_trackers.records import RolloutRow, SpanRecord

BEGAN_S = 1_790_000_000.0
CONFIG: dict[str, Any] = {
    "run": {"name": "conformance", "seed": 7, "directory": "/runs"},
    "policies": {"solver": {"data": [{"use": "first"}, {"use": "second"}], "batch_sequences": 32}},
    "raas": None,
    "sampling": {"temperature": 0.7, "stop": ["\n", "é"]},
}
CONFIG_VALUES = ("conformance", "second", "0.7")
"""Texts that a record of it has somewhere."""

Step = tuple[str, int, float, dict[str, float]]
STEPS: list[Step] = [
    ("eval", 0, BEGAN_S, {"eval/accuracy": 0.25, "eval/version/solver": 0.0}),
    ("solver", 1, BEGAN_S + 1, {"solver/reward": 0.1, "solver/loss": -3.5e-8}),
    ("solver", 2, BEGAN_S + 2, {"solver/reward": 0.30000001192092896, "solver/tokens": 16777217.0}),
    ("verifier", 1, BEGAN_S + 2.5, {"verifier/reward": -1.0, "verifier/pass_rate/gsm8k": 0.5}),
    ("solver", 3, BEGAN_S + 3, {"solver/reward": 0.0, "solver/grad_norm": 1.5e30}),
    ("eval", 3, BEGAN_S + 3, {"eval/accuracy": 1.0, "eval/version/solver": 3.0}),
    ("verifier", 2, BEGAN_S + 4, {"verifier/reward": 2.0}),
]
LATER: list[Step] = [
    ("solver", 4, BEGAN_S + 90, {"solver/reward": 0.75}),
    ("verifier", 3, BEGAN_S + 91, {"verifier/reward": 3.0}),
]
"""After the run was resumed."""

ODD = "a | b\n\n```\t\x00\x1b[31m <script>é\U0001f600\n" + "long " * 400


def rows(step: int) -> list[RolloutRow]:
    """Two trajectories of an update, one of them odd."""
    texts = (("1 + 1 =", " 2"), (ODD, ""))
    return [
        RolloutRow(
            policy="solver",
            step=step,
            group=f"train-{step}",
            prompt_id="train/17",
            prompt=prompt,
            completion=completion,
            reward=0.5,
            tokens=12,
            truncated=False,
            versions=(-1, step),
            time_s=BEGAN_S + step,
        )
        for prompt, completion in texts
    ]


def spans(number: int) -> list[SpanRecord]:
    """The trace of a prompt, across three services."""
    trace = f"{number:032x}"
    tree = (
        ("prompt", "dataflow", ""),
        ("episode", "raas-0", "prompt"),
        ("train", "trainer", "prompt"),
    )
    ids = {name: f"{number * 100 + index + 1:016x}" for index, (name, _, _) in enumerate(tree)}
    return [
        SpanRecord(
            trace=trace,
            id=ids[name],
            parent=ids.get(parent, ""),
            name=name,
            service=service,
            start_s=BEGAN_S + index,
            end_s=BEGAN_S + index + 0.25,
            error="it failed" if name == "episode" else "",
            attributes={"astraflow.group": f"train-{number}", "astraflow.rows": 8},
        )
        for index, (name, service, parent) in enumerate(tree)
    ]


def picture(folder: Path) -> Path:
    """A PNG of one grey pixel."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    content = head + chunk(b"IDAT", zlib.compress(b"\x00\x80")) + chunk(b"IEND", b"")
    file = folder / "curves.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    return file
