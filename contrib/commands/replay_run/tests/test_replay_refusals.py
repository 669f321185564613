"""What a replay refuses before it makes a directory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from astraflow_contrib_replay_run.recorded_run import ReplayChanges, _check_updates
from astraflow_core.errors import RunFailed, UserError
from astraflow_runtime.dataflow.journal.entries import Acknowledged
from astraflow_wire.messages import AcknowledgeBatch


def reader(*batches: str, damaged: bool = False) -> Any:
    def entries() -> Any:
        for batch in batches:
            message = AcknowledgeBatch(policy="solver", batch=batch, version=0, metrics={})
            yield (
                0.0,
                Acknowledged(
                    message=message,
                    tokens_generated=0,
                    generated={},
                    first_asked=None,
                    waited_s=0.0,
                    idle={},
                ),
            )
        if damaged:
            raise RunFailed("entries.log is damaged")

    return cast(Any, SimpleNamespace(entries=entries))


def test_an_update_that_was_not_recorded() -> None:
    until = ReplayChanges(last=(("--until", 2),))
    _check_updates(reader("a", "b"), ("solver",), until)
    with pytest.raises(UserError, match="--step 99: the run has recorded 2 updates"):
        _check_updates(reader("a", "b", "b"), ("solver",), ReplayChanges(last=(("--step", 99),)))


def test_a_damaged_journal_is_a_mistake_of_the_user() -> None:
    with pytest.raises(UserError, match="damaged"):
        _check_updates(reader("a", damaged=True), ("solver",), ReplayChanges())
