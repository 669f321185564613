"""The whole text of an episode, for the rollout store."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from astraflow_core.types import Completion, Trajectory
from astraflow_runtime.raas.episodes.shown_turns import Decode, TurnSpan, spans_of
from astraflow_wire.groups import EpisodeCompletion, EpisodeText, EpisodeTurn
from astraflow_wire.limits import MAX_NAME, cut

LONGEST = 1 << 20
"""The most tokens of an episode whose text is stored: decoding blocks the event loop."""


def episode_text(trajectory: Trajectory, decode: Callable[[str], Decode]) -> EpisodeText:
    """All turns and completions of an episode; none if it has over :data:`LONGEST` tokens. ``decode``: policy → how its
    tokens become text."""
    if sum(len(sequence.tokens) for sequence in trajectory.sequences) > LONGEST:
        return EpisodeText()
    spans = list(spans_of(trajectory.sequences))
    turns = []
    for span in spans:
        tokens = span.tokens[span.start : span.end]
        text = decode(span.policy)(tokens[tokens >= 0])
        turns.append(EpisodeTurn(span.role, span.policy, text, span.sequence, span.start, span.end))
    return EpisodeText(turns, _completions(trajectory, spans, turns))


def _completions(
    trajectory: Trajectory, spans: list[TurnSpan], turns: list[EpisodeTurn]
) -> list[EpisodeCompletion]:
    """Completions are in the order of their turns; those that differ from all remaining turns have
    a text of their own.
    """
    found, first = [], 0
    for completion in trajectory.completions:
        policy = cut(_sendable(completion.policy), MAX_NAME)
        reason = cut(_sendable(completion.finish_reason), MAX_NAME)
        turn = next(
            (i for i in range(first, len(spans)) if _is_turn(completion, spans[i], turns[i])), -1
        )
        if turn >= 0:
            first = turn + 1
            told = EpisodeCompletion(policy, reason, turn)
        else:
            tokens = np.asarray(completion.tokens, "<i4").tobytes()
            told = EpisodeCompletion(policy, reason, -1, _sendable(completion.text), tokens)
        found.append(told)
    return found


def _sendable(text: str) -> str:
    """A text of a workflow without lone surrogates, which UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _is_turn(completion: Completion, span: TurnSpan, turn: EpisodeTurn) -> bool:
    return (
        span.role == "assistant"
        and span.policy == completion.policy
        and turn.text == completion.text
        and np.array_equal(span.tokens[span.start : span.end], completion.tokens)
    )
