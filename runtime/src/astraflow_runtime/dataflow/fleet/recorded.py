"""Counters of RaaS and trainers as the journal has them: an image of the state holds no others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from astraflow_runtime.dataflow.fleet.raas import Fleet
from astraflow_runtime.dataflow.fleet.trainers import TrainerRecord
from astraflow_runtime.dataflow.journal.entries import Acknowledged


class Participants(Protocol):
    """What has counters."""

    @property
    def fleet(self) -> Fleet: ...
    @property
    def trainers(self) -> Mapping[str, TrainerRecord]: ...


def note_recorded(state: Participants, entry: Acknowledged) -> None:
    """The entry is written, or was read."""
    state.fleet.note_recorded(entry.tokens_generated, entry.generated, entry.idle)
    trainer = state.trainers[entry.message.policy]
    trainer.recorded_asked, trainer.recorded_waited_s = entry.first_asked, entry.waited_s
