"""A worker process that scores views one at a time, for rewards that may block, hang or crash.

Started as ``python -m astraflow_runtime.raas.rewards.worker SPEC FD``; msgpack over a socket.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from astraflow_core.types import Completion, Prompt, RewardReport, TrajectoryView
from astraflow_engine_host.failures import describe
from astraflow_engine_host.spec import TOKEN_VARIABLE, read_spec
from astraflow_runtime.raas.rewards.scoring import as_number, build_reward
from astraflow_runtime.raas.user_objects import load_user_objects, score_function
from astraflow_wire.host.parent import end_with
from astraflow_wire.host.worker_channel import answer_calls, say


class WireCompletion(msgspec.Struct, frozen=True, array_like=True):
    """A completion; ``tokens`` are int32 bytes."""

    policy: str
    text: str
    tokens: bytes
    finish_reason: str


class WireView(msgspec.Struct, frozen=True, array_like=True):
    """A trajectory view, encoded for a worker."""

    prompt_id: str
    data: dict[str, Any]
    completions: list[WireCompletion]


class WorkerVerdict(msgspec.Struct, frozen=True, array_like=True):
    """A worker's reply: ``value`` as the reward returned it, with the ``metrics`` of a report, or
    ``error`` as text. The first one, sent when the reward is built, has neither.
    """

    value: float | dict[str, float] | None = None
    error: str = ""
    metrics: dict[str, float] = {}


def pack(view: TrajectoryView) -> bytes:
    """A view as bytes."""
    completions = [
        WireCompletion(c.policy, c.text, np.asarray(c.tokens, np.int32).tobytes(), c.finish_reason)
        for c in view.completions
    ]
    return msgspec.msgpack.encode(WireView(view.prompt.id, view.prompt.data, completions))


def unpack(body: bytes) -> TrajectoryView:
    """The view that was packed."""
    wire = msgspec.msgpack.decode(body, type=WireView)
    return TrajectoryView(
        Prompt(wire.prompt_id, wire.data),
        tuple(
            Completion(c.policy, c.text, np.frombuffer(c.tokens, np.int32), c.finish_reason)
            for c in wire.completions
        ),
    )


def verdict_of(score: Callable[[TrajectoryView], Any], body: bytes) -> WorkerVerdict:
    """The verdict of a reward on a packed view; an exception becomes its ``error``."""
    view = unpack(body)
    try:
        value = score(view)
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
    except Exception as error:  # noqa: BLE001 - the RaaS raises it again, naming the reward
        return WorkerVerdict(error=describe(error, view.prompt.data))
    value = as_number(value)
    report = value if isinstance(value, RewardReport) else RewardReport(value)
    value, metrics = report.reward, report.metrics
    try:
        reward = msgspec.convert(value, float | dict[str, float] | None)
    except msgspec.ValidationError:
        return WorkerVerdict(
            error=f"returned {type(value).__name__}; expected a number or a dict of policy to number"
        )
    try:
        return WorkerVerdict(reward, metrics=msgspec.convert(metrics, dict[str, float]))
    except msgspec.ValidationError:
        return WorkerVerdict(
            error=f"returned metrics {metrics!r:.80}; expected a dict of names to numbers"
        )


async def _awaited(value: Any) -> Any:
    return await value


def main() -> int:
    """The process's entry point."""
    spec = read_spec(Path(sys.argv[1]))
    end_with(spec.parent, cleans_up=False)
    logging.basicConfig(
        level=logging.INFO, format=f"%(asctime)s {spec.raas} reward %(levelname)s %(message)s"
    )
    connection = socket.socket(fileno=int(sys.argv[2]))
    directory = Path(spec.directory)
    try:
        given = load_user_objects(directory)
        token = os.environ.get(TOKEN_VARIABLE, "")
        _, reward = build_reward(spec.run_config, directory, spec.raas, token, given)
        score = score_function(reward)
    except Exception as error:  # the RaaS raises it again
        logging.getLogger("astraflow.reward").exception("the reward could not be built")
        say(connection, msgspec.msgpack.encode(WorkerVerdict(error=describe(error))))
        return 1
    say(connection, msgspec.msgpack.encode(WorkerVerdict()))
    answer_calls(connection, lambda body: msgspec.msgpack.encode(verdict_of(score, body)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
