"""What a trainer makes of the dataflow's answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from astraflow_core.errors import DeadlineExceeded, Refused, UserError, WireError
from astraflow_runtime.trainer import upstream
from astraflow_runtime.trainer.upstream import BAD_ATTEMPTS, DataflowClient, DataflowSilent
from astraflow_wire.batches import NoBatch, encode_no_batch

SOUND = encode_no_batch(False, "ask again")


def asked(answers: Iterable[bytes]) -> Any:
    waiting = iter(answers)

    class Client:
        def post_for_bytes(self, *_: Any, **__: Any) -> bytes:
            return next(waiting)

    client: Any = Client()
    return DataflowClient(client, "solver", 30.0).next_batch(0)


@pytest.mark.parametrize("damaged", [b"", SOUND[:30], SOUND.replace(b"ask", b"\xffsk"), b"AF1"])
def test_a_batch_that_arrives_damaged_is_asked_for_again(damaged: bytes) -> None:
    assert asked([damaged] * (BAD_ATTEMPTS - 1) + [SOUND]) == NoBatch(
        ended=False, reason="ask again"
    )
    with pytest.raises(WireError):
        asked([damaged] * BAD_ATTEMPTS)


@pytest.mark.parametrize("status, expected", [(422, UserError), (409, Refused)])
def test_what_the_configuration_lacks_is_a_mistake_of_the_user(
    status: int, expected: type[Exception]
) -> None:
    class Client:
        def post_for_bytes(self, *_: Any, **__: Any) -> bytes:
            raise Refused(status, "an episode has no metric 'form'")

    client: Any = Client()
    with pytest.raises(expected, match="no metric 'form'"):
        DataflowClient(client, "solver", 30.0).next_batch(0)


def test_a_dataflow_that_waited_for_room_has_all_its_time_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may die meanwhile, and needs a moment to restart."""
    now = [0.0]
    monkeypatch.setattr(upstream, "active_time", lambda: now[0])
    tried: list[float] = []

    class Client:
        def post_for_bytes(self, path: str, message: Any, *, deadline_s: float) -> bytes:
            tried.append(deadline_s)
            first = len(tried) == 1
            now[0] += (
                5000.0 if first else deadline_s
            )  # during the first call the dataflow waits for disk space
            raise DeadlineExceeded("the dataflow", "no answer", deadline_s, had_no_room=first)

    client: Any = Client()
    with pytest.raises(DataflowSilent):
        DataflowClient(client, "solver", 30.0).next_batch(0)
    assert sum(tried[1:]) >= 30.0
