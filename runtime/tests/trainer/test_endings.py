"""The end of a trainer: its files are on the disk before other processes learn of them, and the end of the run reaches
it."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from astraflow_core.config.models import CheckpointTable
from astraflow_core.types import RunInfo
from astraflow_runtime.trainer import upstream
from astraflow_runtime.trainer.service import TrainerService
from astraflow_runtime.trainer.upstream import DataflowClient, DataflowSilent
from astraflow_wire.batches import NoBatch
from astraflow_wire.http.client import SyncClient
from astraflow_wire.messages import TrainerRegistered

pytestmark = pytest.mark.timeout(30)


class Told:
    """A dataflow that ends the run at once, and records at each call which files of the run existed."""

    def __init__(self, folder: Path, answer: NoBatch | Exception) -> None:
        self._folder, self._answer = folder, answer
        self.calls: list[tuple[str, bool, bool]] = []

    def _called(self, name: str) -> None:
        state = any((self._folder / "checkpoints").rglob("checkpoint.json"))
        self.calls.append((name, state, (self._folder / "models" / "p").exists()))

    def register(self, updates: Any, start_deadline_s: float) -> TrainerRegistered:
        return TrainerRegistered(run="r", highest_version=-1, updates=0, incarnation=1)

    def next_batch(self, version: int) -> NoBatch:
        self._called("next_batch")
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer

    def release(self, updates: int, last: bool = False) -> None:
        self._called("last" if last else "release")

    def failed(self, *said: Any) -> None:
        raise AssertionError(said)


class Operations:
    def meet(self) -> None: ...

    def set_up(self, checkpoint: Path | None) -> None: ...

    def save(self, folder: Path) -> None:
        (folder / "state").write_text("state")

    def finish_save(self, wait: bool) -> bool:
        return True

    def save_model(self, folder: Path) -> None:
        (folder / "weights").write_text("weights")


def service(tmp_path: Path, dataflow: Told) -> TrainerService:
    run = SimpleNamespace(
        start_deadline_s=5.0, deadline_s=5.0, colocated=False, probe_every=0, give_up_after_s=25.0
    )
    trainer = SimpleNamespace(use="t", ranks=1)
    config = SimpleNamespace(
        run=run,
        checkpoint=CheckpointTable(every=0, keep=2),
        policies={"p": SimpleNamespace(trainer=trainer, publish_every=1, model=str(tmp_path))},
    )
    versions = SimpleNamespace(newest=0, publish=lambda *_: 0.0)
    hooks = SimpleNamespace(weights_published=lambda *_: None)
    info = RunInfo(name="r", directory=tmp_path, policies=("p",), steps=1, seed=0, max_staleness=1)
    parts = [config, info, "p", Operations(), versions, dataflow, hooks]
    return TrainerService(*cast(list[Any], parts))


def test_state_and_model_are_written_before_the_dataflow_is_notified(tmp_path: Path) -> None:
    dataflow = Told(tmp_path, NoBatch(ended=True, reason="all updates are done"))
    service(tmp_path, dataflow).run()
    assert dataflow.calls == [("next_batch", False, False), ("last", True, True)]


@pytest.mark.parametrize("stopped", [True, False])
def test_a_trainer_saves_though_its_dataflow_is_gone(tmp_path: Path, stopped: bool) -> None:
    dataflow = Told(tmp_path, DataflowSilent("the dataflow", "connection refused", 25.0))
    one = service(tmp_path, dataflow)
    if stopped:  # by SIGTERM, while it waits for a batch
        dataflow.next_batch = lambda *_: one.stop.set() or Told.next_batch(dataflow, *_)
        one.run()
    else:
        with pytest.raises(DataflowSilent):
            one.run()
    assert (tmp_path / "models" / "p" / "weights").exists()
    assert list((tmp_path / "checkpoints").rglob("checkpoint.json"))
    assert [name for name, *_ in dataflow.calls] == ["next_batch"]


def test_a_trainer_whose_dataflow_is_gone_notices_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "POLL_S", 0.01)
    monkeypatch.setattr(upstream, "FIRST_TRY_S", 0.01)
    asked: list[bool] = []

    def given_up() -> bool:
        asked.append(True)
        return len(asked) == 3

    dataflow = DataflowClient(SyncClient("http://127.0.0.1:9", "token"), "p", 600.0)
    dataflow.given_up = given_up
    began = time.monotonic()
    for call in (lambda: dataflow.next_batch(0), lambda: dataflow.acknowledge("p-000001", 1, {})):
        asked.clear()
        with pytest.raises(DataflowSilent, match="Connection refused") as caught:
            call()
        assert len(asked) == 3
        assert caught.value.seconds < 600
    assert time.monotonic() - began < 20


def test_a_trainer_registers_once_all_ranks_are_there(tmp_path: Path) -> None:
    """A rank that fails before it knows the incarnation reports without one, so no process may have registered by
    then."""
    dataflow = Told(tmp_path, NoBatch(ended=True, reason="all updates are done"))
    order: list[str] = []
    dataflow.register = lambda *_: order.append("register") or Told.register(dataflow, *_)  # type: ignore[method-assign,func-returns-value]
    one = service(tmp_path, dataflow)
    one._operations.meet = lambda: order.append("meet")  # type: ignore[method-assign]
    one.run()
    assert order == ["meet", "register"]
