"""Checks of the workflow suite on the trajectories of episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import numpy as np

from astraflow_core.errors import AstraFlowError
from astraflow_core.types import Prompt, Sequence, Trajectory
from astraflow_core.types.trajectory import NOT_SAMPLED
from astraflow_engine_host.protocol import EngineError
from astraflow_testing.scripted_policies import ScriptedPolicies, ScriptedRequest
from astraflow_wire.column_table import SPARSE_COLUMNS

ENDS_S = 5.0
"""In which an episode that is cancelled ends; it has nothing to wait for."""


def untrue(sequence: Sequence, asked: Iterable[ScriptedRequest]) -> str:
    """A problem of the tokens that ``sequence`` marks as sampled, compared with the requests ``asked``; or empty.

    A log-prob belongs to a token after those before it, so the requests must have sampled this very token after this
    very beginning, with this log-prob and version.
    """
    truth: dict[bytes, set[tuple[float, int]]] = {}
    for request in asked:
        if request.policy == sequence.policy and (result := request.result) is not None:
            whole = np.concatenate([request.prompt, result.tokens]).astype(np.int32)
            for place, token in enumerate(zip(result.logprobs, result.versions, strict=True)):
                beginning = whole[: len(request.prompt) + place + 1].tobytes()
                truth.setdefault(beginning, set()).add((float(token[0]), int(token[1])))
    tokens = np.asarray(sequence.tokens, np.int32)
    for place in np.flatnonzero(np.asarray(sequence.versions) != NOT_SAMPLED).tolist():
        sampled = truth.get(tokens[: place + 1].tobytes())
        given = (float(np.float32(sequence.logprobs[place])), int(sequence.versions[place]))
        if sampled is None:
            return f"token {place} of {len(tokens)}, which no request of this episode sampled after the tokens before it"
        if given not in sampled:
            right = " or ".join(f"{logprob:g} of version {v}" for logprob, v in sorted(sampled))
            return f"token {place} with log-prob {given[0]:g} of version {given[1]}; it was sampled with {right}"
    return ""


def _plain(given: Any) -> Any:
    return given.tolist() if isinstance(given, np.ndarray) else given


def content(outcome: Any) -> Any:
    """The part that two equal episodes must have in common; for an error its type."""
    if not isinstance(outcome, Trajectory):
        return type(outcome).__name__
    return (
        [
            (
                s.policy,
                np.asarray(s.tokens).tolist(),
                np.asarray(s.loss_mask).tolist(),
                s.reward,
                *(_plain(getattr(s, column.name)) for column in SPARSE_COLUMNS),
            )
            for s in outcome.sequences
        ],
        [(c.policy, c.text, c.finish_reason) for c in outcome.completions],
        outcome.rewards,
        outcome.metrics,
    )


def tells_of_the_engine(error: BaseException) -> bool:
    """Whether the error is that of an engine, or carries it."""
    if isinstance(error, EngineError):
        return True
    inner = [error.__cause__, error.__context__, *getattr(error, "exceptions", ())]
    return any(each is not None and tells_of_the_engine(each) for each in inner)


def names(error: BaseException, text: str) -> bool:
    """Whether it is an error on purpose that has ``text`` in it."""
    return isinstance(error, AstraFlowError) and text in str(error)


def told(outcome: Any) -> str:
    """An episode's outcome in a few words."""
    if isinstance(outcome, BaseException):
        return f"raised {type(outcome).__name__}: {outcome}"
    if outcome is None:
        return "rejected the sample"
    return f"returned {type(outcome).__name__}"


async def kept_by(workflow: Any, on: ScriptedPolicies, prompt: Prompt) -> set[asyncio.Task[Any]]:
    """The tasks that exist after a first episode, which belong to the workflow itself, such as a server."""
    await on.play(0, lambda: workflow.run_episode(on.engines(), prompt))
    return asyncio.all_tasks()


async def cancelled(
    workflow: Any, on: ScriptedPolicies, prompt: Prompt, first: ScriptedPolicies
) -> str:
    """A problem in the end of an episode that is cancelled during the held request; or empty. Another one is
    played on ``first`` before it."""
    kept = await kept_by(workflow, first, prompt)
    playing = asyncio.create_task(workflow.run_episode(on.engines(), prompt))
    held = asyncio.create_task(on.held.wait())
    await asyncio.wait({playing, held}, timeout=ENDS_S, return_when=asyncio.FIRST_COMPLETED)
    if on.held.is_set():
        playing.cancel()
        await asyncio.wait({playing}, timeout=ENDS_S)
        if not playing.done():
            return f"it was still running after {ENDS_S:g} s"
        if not playing.cancelled():
            outcome = playing.exception() or playing.result()
            return f"it continued and {told(outcome)}"
    held.cancel()
    await asyncio.gather(playing, held, return_exceptions=True)
    left = left_of(on, kept)
    return f"it left {', '.join(left)}" if left else ""


def left_of(on: ScriptedPolicies, kept: set[asyncio.Task[Any]]) -> list[str]:
    """Tasks and requests that are still there, but for those that the workflow had ``kept`` before."""
    tasks = [t for t in asyncio.all_tasks() - kept if not t.done()]
    open_requests = sum(not each.over for each in on.asked)
    return [
        *(f"a task of {task.get_coro().__qualname__}" for task in tasks),  # type: ignore[union-attr]
        *([f"{open_requests} open requests"] if open_requests else []),
    ]
