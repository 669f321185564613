"""The file of rollouts: a line of JSON for each episode, as it ends."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from astraflow_contrib_eval.player import EvaluatedEpisode
from astraflow_core.errors import UserError


class RolloutFile:
    """Writes lines to ``path``, which begins empty; with ``tokens`` also the token ids and log-probs."""

    def __init__(self, path: Path, tokens: bool) -> None:
        self._tokens = tokens
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise UserError(f"--rollouts {path}: it cannot be written: {error.strerror}") from error

    def __enter__(self) -> RolloutFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(self, episode: EvaluatedEpisode) -> None:
        """One line, which is in the file when this returns."""
        self._file.write(msgspec.json.encode(self._line(episode)) + b"\n")
        self._file.flush()

    def _line(self, episode: EvaluatedEpisode) -> dict[str, Any]:
        line: dict[str, Any] = {
            "set": episode.eval_set,
            "prompt": episode.prompt_id,
            "sample": episode.sample,
            "seconds": round(episode.seconds, 3),
        }
        if episode.scores is None:
            return {**line, "outcome": "failed", "error": episode.error}
        if episode.trajectory is None:
            return {**line, "outcome": "rejected"}
        texts = episode.completions
        line |= {
            "outcome": "played",
            "reward": episode.rewards,
            "correct": {policy: score.correct == 1 for policy, score in episode.scores.items()},
            "text": texts[-1].text if texts else "",
            "finish_reason": texts[-1].finish_reason if texts else "",
            "turns": [
                {"policy": each.policy, "text": each.text, "finish_reason": each.finish_reason}
                for each in texts
            ],
            "metrics": episode.trajectory.metrics,
        }
        if self._tokens:
            line["sequences"] = [
                {
                    "policy": sequence.policy,
                    "tokens": sequence.tokens.tolist(),
                    "sampled": (sequence.versions >= 0).tolist(),
                    "logprobs": sequence.logprobs.tolist(),
                }
                for sequence in episode.trajectory.sequences
            ]
        return line
