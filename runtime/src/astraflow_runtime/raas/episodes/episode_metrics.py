"""Validates the metrics that a workflow or a reward returns with an episode."""

from __future__ import annotations

import logging
from typing import Any

from astraflow_runtime.raas.rewards.scoring import as_number
from astraflow_wire.episode_metrics import unsendable
from astraflow_wire.limits import MAX_EPISODE_METRICS

log = logging.getLogger("astraflow.raas")


class EpisodeMetrics:
    """Drops invalid metrics, so that they do not fail the episode. Each reason is logged once, with
    the name of the ``giver``.
    """

    def __init__(self, giver: str) -> None:
        self._giver = giver
        self._warned: set[str] = set()

    def checked(self, given: Any, prompt_id: str) -> dict[str, float]:
        """The metrics of an episode on a prompt. :class:`TypeError` if they are not a dict of names to numbers."""
        if not isinstance(given, dict):
            raise TypeError(
                f"metrics of {type(given).__name__}; expected a dict of names to numbers"
            )
        kept: dict[str, float] = {}
        for name, each in given.items():
            value = as_number(each)
            if not isinstance(name, str) or not isinstance(value, float):
                raise TypeError(f"metric {name!r:.80} = {each!r:.80}; expected a number")
            reason = unsendable(name, value)
            if not reason and len(kept) == MAX_EPISODE_METRICS:
                reason = f"at most {MAX_EPISODE_METRICS} metrics are allowed"
            if reason:
                self._warn_once(reason, f"{name!r:.80} = {value!r}", prompt_id)
            else:
                kept[name] = value
        return kept

    def _warn_once(self, reason: str, metric: str, prompt_id: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            log.warning(
                "%s: metric %s of an episode on prompt %.80r is dropped: %s; further ones are dropped without a "
                "warning",
                self._giver,
                metric,
                prompt_id,
                reason,
            )
