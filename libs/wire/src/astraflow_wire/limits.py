"""Limits of numbers, names and texts in messages, as types that decoding enforces. NaN and
infinities are rejected wherever a number is bounded on both sides: JSON cannot represent them, they
would persist in the journal, and a timer with such a value never fires.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any

from msgspec import Meta

MAX_FAILURE_KIND = 32
FAILURE_KIND = rf"^[a-z0-9_]{{0,{MAX_FAILURE_KIND}}}\Z"
"""The kind of failure of an environment: a word by which failures are counted."""
MAX_FAILURE_KINDS = 64
"""The most kinds that are counted separately."""
MAX_NAME = 256
"""The most characters of a name of a RaaS, a task or a policy, which is also used in metrics and
file names.
"""
MAX_LABEL = 128
"""The most characters of a metric's name; there may be :data:`MAX_METRICS` for each RaaS in every
reply of the status.
"""
MAX_PROMPT_ID = 1 << 16
"""The maximum number of characters of a prompt's id, which may come from a data set."""
MAX_ENDPOINT = 4096
"""The most characters of an endpoint: a URL, or the path of a socket or a folder."""
MAX_TEXT = 1 << 14
"""The most characters of a text for display; the rest is cut."""
MAX_WAIT_TEXT = 256
"""The same for each text of a wait, of which every RaaS may report many."""
TEXTS = {
    "error": MAX_TEXT,
    "reason": MAX_TEXT,
    "who": MAX_WAIT_TEXT,
    "for_whom": MAX_WAIT_TEXT,
    "what": MAX_WAIT_TEXT,
}
"""Field with a text for display → the most characters of it."""
MAX_METRICS = 512
"""The most metrics in one message: some twenty figures of a policy, for two dozen policies."""
MAX_WAITS = 64
"""The most waits of one RaaS that are shown."""
MAX_POLICIES = 256
"""The most policies in a message."""
MAX_PACKAGES = 512
"""The most packages that a process states at its registration."""
ARTIFACT = "astraflow pack"
"""Among packages, the artifact from which the environment was made; no distribution has a name with a space."""
MAX_ENDPOINTS = 4096
"""The most endpoints of a version: one for each rank of a large trainer."""
MAX_PLACES = 1 << 20
"""The most episodes that one RaaS runs at once."""
MAX_TASKS = 1 << 16
"""The most tasks in a heartbeat."""
MAX_RAAS = 1024
"""The most RaaS at a time, and the most that may be requested."""
MAX_ADDED = 256
"""The most RaaS that one message may request: each becomes a process."""
MAX_UPDATES = 1 << 16
"""The most checkpoints that a trainer may offer to resume from."""
MAX_PROBE_BYTES = 16 << 20
"""The most bytes of one column of a probe, which is sent to every RaaS; a trainer's probe has a few
thousand tokens.
"""
MAX_PROBE_ROWS = 4096
MAX_DRAFT_BYTES = 4 << 20
"""The most bytes of earlier sequences that a RaaS gets for a task, to draft from."""
MAX_DRAFT_SEQUENCES = 256
"""The most of these sequences."""
MAX_SPANS = 4096
"""Spans of the episodes of a group."""
MAX_SPAN_S = 1e7
"""Seconds of a span."""
MAX_SPARSE = 64
"""The most sparse columns of a group or a batch."""
MAX_SEQUENCES = 1 << 16
"""The most sequences of a group."""
MAX_EPISODE_METRICS = 64
"""The most names of ``Trajectory.metrics`` in a group, and of a policy in a run."""
MAX_TURNS = 64
"""The most turns of the episode shown for a group."""
MAX_SWAPS = 1024
"""The most swaps of data policies in a run: the status has the table of each."""
MAX_TABLE_VALUES = 1024
"""The most values in the table of a swap, nested ones included."""
MAX_TABLE_DEPTH = 8
"""The deepest nesting of arrays and tables in the table of a swap."""
MAX_NUMBER = 1e100
"""Far beyond any measurement, while sums and products of two such numbers are still finite."""
MAX_INTEGER = 1 << 53
"""Integers up to this are exact as float64, and so in any JSON reader."""
MAX_SECONDS = 1e12
MAX_NATS = 1e9
MAX_VERSION = (1 << 31) - 1
"""Versions are int32 in the columns of groups and batches."""

Number = Annotated[float, Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]
"""A measured number: finite."""
Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
"""A time, or one since 1970: finite and not negative."""
Nats = Annotated[float, Meta(ge=0, le=MAX_NATS)]
"""A mean absolute difference of log-probs."""
Integer = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Count = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
GroupCount = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
"""A count within one group."""
Version = Annotated[int, Meta(ge=-1, le=MAX_VERSION)]
"""The version of a policy's weights; -1: none."""
Places = Annotated[int, Meta(ge=0, le=MAX_PLACES)]
"""Slots for episodes."""
Length = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
"""Tokens of a sequence: with :data:`MAX_SEQUENCES` of them their sum fits into int64."""
Name = Annotated[str, Meta(max_length=MAX_NAME)]
FailureKind = Annotated[str, Meta(max_length=MAX_FAILURE_KIND, pattern=FAILURE_KIND)]
PromptId = Annotated[str, Meta(max_length=MAX_PROMPT_ID)]
Label = Annotated[str, Meta(max_length=MAX_LABEL)]
Metrics = Annotated[dict[Label, Number], Meta(max_length=MAX_METRICS)]
"""Metric → finite value."""
DraftBytes = Annotated[
    dict[Name, Annotated[int, Meta(ge=0, le=MAX_DRAFT_BYTES)]], Meta(max_length=MAX_POLICIES)
]
"""Policy → the most bytes of its sequences."""
DraftPolicies = Annotated[list[Name], Meta(max_length=MAX_DRAFT_SEQUENCES)]
"""The policy of each sequence."""
DraftSizes = Annotated[list[Length], Meta(max_length=MAX_DRAFT_SEQUENCES)]
"""Tokens of each sequence."""
Versions = Annotated[dict[Name, Version], Meta(max_length=MAX_POLICIES)]
"""Policy → version."""
Digests = Annotated[dict[Name, Name], Meta(max_length=MAX_POLICIES)]
"""Policy → digest of a version's weights."""
Packages = Annotated[dict[Name, Name], Meta(max_length=MAX_PACKAGES)]
"""Distribution → version; :data:`ARTIFACT` → digest."""

Policies = Annotated[list[Name], Meta(max_length=MAX_POLICIES)]
TaskNames = Annotated[list[Name], Meta(max_length=MAX_TASKS)]
Endpoint = Annotated[str, Meta(max_length=MAX_ENDPOINT)]
Endpoints = Annotated[list[Endpoint], Meta(max_length=MAX_ENDPOINTS)]
Updates = Annotated[tuple[Count, ...], Meta(max_length=MAX_UPDATES)]
Added = Annotated[int, Meta(ge=0, le=MAX_ADDED)]
Figures = Annotated[list[Number | None], Meta(max_length=MAX_SEQUENCES)]
"""A metric of each trajectory of a group; ``None`` for one that has none of the name."""
EpisodeMetrics = Annotated[dict[Label, Figures], Meta(max_length=MAX_EPISODE_METRICS)]
RewardNames = Annotated[list[Label], Meta(max_length=MAX_EPISODE_METRICS)]
ProbeLengths = Annotated[list[Count], Meta(max_length=MAX_PROBE_ROWS)]
ProbeColumn = Annotated[bytes, Meta(max_length=MAX_PROBE_BYTES)]


def cut(text: str, most: int = MAX_TEXT) -> str:
    """A text for display, cut to ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def sendable(metrics: Mapping[str, float]) -> dict[str, float]:
    """The ``metrics`` that a message may contain: those that are not finite, have too long a name
    or are too many are left out, so that an invalid metric does not invalidate the report.
    """
    # As Python's floats: those of float32 are compared as float32, to which a large bound is infinite.
    given = ((name, float(value)) for name, value in metrics.items())
    kept = (
        (name, value)
        for name, value in given
        if -MAX_NUMBER <= value <= MAX_NUMBER and len(name) <= MAX_LABEL
    )
    return dict(islice(kept, MAX_METRICS))


def check_table(table: Mapping[str, Any]) -> None:
    """ValueError unless a table of a message contains only what both TOML and JSON can represent
    (texts, booleans, integers, finite numbers, arrays and tables), not too many values, and not too
    deeply nested.
    """
    left = MAX_TABLE_VALUES

    def look(value: Any, where: str, depth: int) -> None:
        nonlocal left
        left -= 1
        if left < 0 or depth > MAX_TABLE_DEPTH:
            raise ValueError(
                f"a table of over {MAX_TABLE_VALUES} values, or over {MAX_TABLE_DEPTH} deep"
            )
        if isinstance(value, dict):
            for key, inner in value.items():
                if not isinstance(key, str) or len(key) > MAX_NAME:
                    raise ValueError(
                        f"{where} has a key that is not text of at most {MAX_NAME} characters"
                    )
                look(inner, f"{where}.{key}", depth + 1)
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                look(inner, f"{where}[{index}]", depth + 1)
        elif not _is_plain(value):
            raise ValueError(
                f"{where} is not text, a boolean, a bounded integer or a finite number"
            )

    look(table, "table", 0)


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, bool) or (isinstance(value, int) and abs(value) <= MAX_INTEGER)
