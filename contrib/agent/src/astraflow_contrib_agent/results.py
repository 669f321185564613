"""What a command or a service says of its episode."""

from __future__ import annotations

import json
import logging
from typing import Any

from astraflow_core.errors import WorkflowError

log = logging.getLogger(__name__)

FORMS = '{"reward": number} or {"rewards": {policy: number}}'
_SHOWN = 200


class ResultReader:
    """Reads the results of agent ``who``. What is not a JSON object is no result, since an agent may print what it
    likes and leave its reward to the run's component; the first such is warned of."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._has_warned = False

    def of_output(self, said: bytes) -> Any:
        """The reward in the last line that is not empty; ``None`` if it is something else than a JSON object.
        :class:`WorkflowError` for an object that says no reward."""
        lines = said.strip().splitlines()
        if not lines:
            return None
        found = _object(lines[-1])
        if found is not None:
            return self._reward(found, "the last line of its output")
        rewarded = any(_is_result(line) for line in lines)
        self._warn(
            "the last line of its output",
            lines[-1],
            "; an earlier line has a reward, which counts in the last one only" if rewarded else "",
        )
        return None

    def of_reply(self, body: bytes) -> Any:
        """The same of a whole body; ``None`` if it is empty, too."""
        if not body.strip():
            return None
        found = _object(body)
        if found is not None:
            return self._reward(found, "its reply")
        self._warn("its reply", body, "")
        return None

    def _reward(self, found: dict[str, Any], place: str) -> Any:
        if not found:
            return None
        if "turns" in found:
            return found
        given = [name for name in ("reward", "rewards") if name in found]
        if len(given) != 1:
            what = "both reward and rewards" if given else "neither reward nor rewards"
            raise WorkflowError(
                f"agent {self._who}: {place}, {json.dumps(found)[:_SHOWN]}, has {what}; expected {FORMS}, or {{}} to leave "
                "the reward to the run's [reward]"
            )
        return found[given[0]]

    def _warn(self, place: str, text: bytes, more: str) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        shown = text[:_SHOWN].decode("utf-8", "replace")
        log.warning(
            "agent %s: %s, %r, is not a result%s; expected %s, without which the run's [reward] scores (further "
            "ones are not warned of)",
            self._who, place, shown, more, FORMS,
        )  # fmt: skip


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _is_result(line: bytes) -> bool:
    if not line.lstrip().startswith(b"{") or b'"reward' not in line:
        return False
    found = _object(line)
    return found is not None and ("reward" in found or "rewards" in found)
