"""What a simulation needs to know of a run; JSON, so that it can be taken elsewhere."""

from __future__ import annotations

from pathlib import Path

import msgspec

from astraflow_core.errors import UserError

FORMAT = 1


class RecordedGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One task as it was rolled out: ``seconds`` from its lease to its result, with ``busy`` places of its
    RaaS busy on average, its own included; ``size``: trajectories; ``rows``: policy → rows accepted of it."""

    seconds: float
    busy: float
    size: int
    rows: dict[str, int] = {}


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """One update. ``busy_s``: from the acknowledgement before to its own, without ``waited_s``, what its
    trainer waited for the batch. ``at_s``: when it was acknowledged, in seconds of the run. ``staleness``: of
    the rows that were fresh and of those borrowed."""

    at_s: float
    busy_s: float
    waited_s: float
    staleness: list[int]


class RecordedPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """One policy. ``fresh``: rows of a batch that were never served before, on average; ``size``: bytes of a
    version; ``pull_s`` and ``swap_s``: seconds to fetch one, and to put it into place; ``steps``: all but the
    first of each start of its trainer; ``accepted``: rows accepted between the first of them and the last.
    ``borrowed``: rows of a batch that policy ``source`` sampled, on average, and ``most_borrowed`` of any."""

    batch_sequences: int
    publish_every: int
    ranks: int
    per_trajectory: float
    fresh: float
    size: int
    pull_s: float
    swap_s: float
    steps: list[RecordedStep]
    accepted: int
    source: str = ""
    borrowed: float = 0.0
    most_borrowed: int = 0

    @property
    def shares(self) -> str:
        """The policy whose stream this one shares, without its own rows; empty if it shares none."""
        return self.source if self.most_borrowed == self.batch_sequences else ""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A run: the ``replicas`` (RaaS, on average over its steps), the places of each, and all that happened.
    ``turnaround_s``: how long a place stands empty between two tasks though there is work."""

    run: str
    replicas: float
    places: int
    max_staleness: int
    group_size: int
    turnaround_s: float
    groups: list[RecordedGroup]
    policies: dict[str, RecordedPolicy]
    format: int = FORMAT

    def save(self, path: Path) -> None:
        """Write it to a file."""
        path.write_bytes(msgspec.json.encode(self))


def load(path: Path) -> Recording:
    """A recording from a file; :class:`UserError` if it is none."""
    try:
        recording = msgspec.json.decode(path.read_bytes(), type=Recording)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"{path} is not a recording ({error}); `astraflow simulate --save FILE` writes one"
        ) from error
    if recording.format != FORMAT:
        raise UserError(f"{path} has format {recording.format}; {FORMAT} is read: save it again")
    return recording
