"""What a tool may answer: bounded, and without secrets."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from astraflow_runtime.cli.running.secrets import TOKEN
from astraflow_wire.redaction import HIDDEN, hidden_texts, redacted, without_secrets

MOST_BYTES = 60_000
"""Of a result, as JSON."""
_SHORTEST_SECRET = 8


def result_of(value: Mapping[str, Any], run: Path | None) -> dict[str, Any]:
    """``value`` as the client may have it: JSON of at most :data:`MOST_BYTES`, with ``***`` for what is or may be a secret
    of the run."""
    plain = without_secrets(json.loads(json.dumps(value, default=str)))
    tokens, items, letters = tokens_of(run), 100, 2000
    while True:
        found: dict[str, Any] = _Bounds(tokens, items, letters).of(plain)
        if len(json.dumps(found)) <= MOST_BYTES or items <= 1:
            return found
        items, letters = items // 2, max(100, letters // 2)


def text_of(
    text: str, run: Path | None, given: Mapping[str, Any] | None = None, most: int = 4000
) -> str:
    """A text, such as an error about what was ``given``, alike."""
    plain = redacted(text, hidden_texts(given or {}))
    return _Bounds(tokens_of(run), 0, most).text(plain)


def tokens_of(run: Path | None) -> tuple[str, ...]:
    """The secrets that this process knows of: the tokens of the run and of its environment."""
    found = [os.environ.get(TOKEN, "").strip()]
    if run is not None:
        # One that this process cannot read can be in no answer of it.
        with contextlib.suppress(OSError, ValueError):
            found.append((run / "token").read_text("utf-8").strip())
    return tuple(token for token in found if len(token) >= _SHORTEST_SECRET)


@dataclass(frozen=True)
class _Bounds:
    """Keeps the last ``items`` of lists and the first ``2 · items`` of tables, and the first ``letters`` of texts; each says
    what is left out. ``tokens`` are hidden."""

    tokens: tuple[str, ...] = field(repr=False)
    items: int
    letters: int

    def of(self, value: Any) -> Any:
        """``value`` within the bounds."""
        if isinstance(value, dict):
            kept = {
                self.text(key): self.of(item) for key, item in islice(value.items(), 2 * self.items)
            }
            if (more := len(value) - len(kept)) > 0:
                kept["…"] = f"{more} more keys are left out"
            return kept
        if isinstance(value, list):
            kept_items = [self.of(item) for item in value[-self.items :]]
            more = len(value) - len(kept_items)
            return [f"… {more} earlier items are left out", *kept_items] if more else kept_items
        return self.text(value) if isinstance(value, str) else value

    def text(self, text: str) -> str:
        """A text within the bounds."""
        for token in self.tokens:
            text = text.replace(token, HIDDEN)
        more = len(text) - self.letters
        return f"{text[: self.letters]}… ({more} more characters)" if more > 0 else text
