from __future__ import annotations

import contextlib
import threading

import pytest
import torch.distributed as dist

from astraflow_core.errors import DeadlineExceeded
from astraflow_core.types import Ranks
from astraflow_plugin_megatron import meeting


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> dist.TCPStore:
    """The store of a torchrun that has started the ranks."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    # Threads stand for processes here: each would count its own meetings.
    monkeypatch.setattr(meeting, "_meetings", iter([0] * 9))
    return store


def test_ranks_meet(agent: dist.TCPStore) -> None:
    met = []
    others = [
        threading.Thread(
            target=lambda r=rank: met.append(meeting.meeting_place(Ranks(r, 3, r, 30)))
        )
        for rank in (1, 2)
    ]
    for other in others:
        other.start()
    own = meeting.meeting_place(Ranks(0, 3, 0, 30))
    for other in others:
        other.join(30)
    own.set("word", "said")
    assert [store.get("word") for store in met] == [b"said", b"said"]


def test_the_rank_that_does_not_come_is_named(agent: dist.TCPStore) -> None:
    with pytest.raises(DeadlineExceeded, match="rank 1, 2 of 3"):
        meeting.meeting_place(Ranks(0, 3, 0, 0.3))


def test_what_was_said_before_a_restart_does_not_count(
    agent: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):  # both had joined, and both have left
        with pytest.raises(DeadlineExceeded) if rank == 0 else contextlib.nullcontext():
            meeting.meeting_place(Ranks(rank, 2, rank, 0.3))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    with pytest.raises(DeadlineExceeded, match="rank 1 of 2"):
        meeting.meeting_place(Ranks(0, 2, 0, 0.3))
