from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from astraflow_core.errors import (
    AstraFlowError,
    DeadlineExceeded,
    NonFiniteLoss,
    RunFailed,
    UserError,
    WeightsError,
)
from astraflow_core.types import Batch, Ranks
from astraflow_runtime.trainer.operations import Operations
from astraflow_runtime.trainer.ranks import channel
from astraflow_runtime.trainer.ranks.channel import RankChannel, RankLost, RankZeroChannel
from astraflow_runtime.trainer.ranks.follower import Follower
from astraflow_runtime.trainer.ranks.leader import Leader
from astraflow_runtime.trainer.ranks.rank_commands import End, Left, RankPing
from astraflow_runtime.trainer.ranks.rendezvous import RankRendezvous
from astraflow_runtime.trainer.ranks.sharding import RankZeroPublisher, sharded

pytestmark = pytest.mark.timeout(60)
CONFIG: Any = SimpleNamespace(
    run=SimpleNamespace(steps=3, seed=0),
    policies={"p": SimpleNamespace(model="/m", mini_batches=1)},
)


def make_batch() -> Batch:
    zeros, tokens = np.zeros(2, np.float32), np.arange(5, dtype=np.int32)
    mask = np.array([0, 1, 0, 1, 1], bool)
    numbers = np.arange(2, dtype=np.int64)
    return Batch(
        "p-1", "p", 3, np.array([2, 3], np.int32), tokens, mask, np.zeros(5, np.float32),
        np.full(5, 3, np.int32), zeros, numbers, numbers, np.ones(2, np.int32), zeros, zeros,
    )  # fmt: skip


class Trainer:
    """Its log-probs are its rank; records the calls that it gets."""

    weights_kind = "full"

    def __init__(self, rank: int, fails: Exception | None = None) -> None:
        self.rank, self.fails = rank, fails
        self.said: list[Any] = []
        self.proximal: Any = None

    def setup(self, model: Path, total_steps: int, needs: frozenset[str]) -> None:
        self.said.append(("setup", str(model), total_steps))

    def load(self, folder: Path) -> None:
        self.said.append(("load", str(folder)))

    def adopt(self, model: Path, steps: int) -> None:
        self.said.append(("adopt", str(model), steps))

    def logprobs(self, batch: Batch, model: str) -> Any:
        return np.full(len(batch.tokens), self.rank, np.float32)

    def step(self, batch: Batch, algorithm: Any, step: int) -> dict[str, float]:
        if self.fails is not None:
            raise self.fails
        self.proximal = batch.proximal
        self.said.append(("step", step, batch.tokens.tolist(), batch.id))
        return {"loss": float(self.rank)}

    def export(self) -> Iterator[Any]:
        yield from ("a", "b")
        self.said.append("exported")

    def export_shards(self) -> Iterator[Any]:
        if self.fails is not None:
            raise self.fails
        yield from (f"rows of {self.rank}", f"columns of {self.rank}")

    def save(self, folder: Path) -> None:
        self.said.append(("save", str(folder)))

    def save_model(self, folder: Path) -> None:
        self.said.append(("save_model", str(folder)))

    def sleep(self) -> None:
        self.said.append("asleep")

    def wake(self) -> None:
        self.said.append("awake")

    def close(self) -> None:
        self.said.append("closed")


class Shards:
    """Sends the others what its rank exports."""

    endpoints = ("here",)

    def __init__(self, trainer: Trainer, share: Callable[[bytes], list[bytes]]) -> None:
        self._trainer, self._share = trainer, share

    def publish(self, version: int, slices: Any, derives_from: int | None) -> Any:
        heard = [self._share(b"at %d: %s" % (version, part.encode())) for part in slices()]
        self._trainer.said.append(heard)
        return heard

    def retain(self, versions: frozenset[int]) -> None:
        self._trainer.said.append(versions)

    def close(self) -> None:
        self._trainer.said.append("stopped serving")


class Algorithm:
    needs = frozenset({"proximal"})

    def advantages(self, batch: Batch) -> Any:
        return np.ones(len(batch.tokens), np.float32)

    def weights(self, batch: Batch) -> Any:
        return {"policy": batch.loss_mask / np.float32(3)}


class Dataflow:
    def __init__(self) -> None:
        self.failures: list[str] = []
        self.incarnation = 0

    def failed(self, error: AstraFlowError, batch: str = "", who: str = "") -> None:
        self.failures.append(f"{who}: {error}")


class Group:
    """Rank 0 in this thread, the others each in one of their own."""

    def __init__(
        self, *others: Trainer, deadline_s: float = 30.0, host: str = "", sleeps: bool = False
    ) -> None:
        self.sleeps = sleeps
        size = len(others) + 1
        environment = {"TORCHELASTIC_RUN_ID": f"{id(self)}", "MASTER_ADDR": "127.0.0.1"}
        if host:
            environment["LOCAL_WORLD_SIZE"] = "1"

        def meeting(rank: int) -> RankRendezvous:
            return RankRendezvous.of(
                "trainer-p", Ranks(rank, size, rank, deadline_s), "t", environment
            )

        self.trainer, self.others, self.dataflow = Trainer(0), others, Dataflow()
        self.hub = RankZeroChannel(meeting(0))
        algorithm: Any = Algorithm()
        mine: Any = self.trainer
        self.leader = Leader(
            CONFIG, "p", mine, algorithm, self.hub,
            shards=Shards(self.trainer, self.hub.exchange), sleeps=sleeps, incarnation=lambda: 7,
        )  # fmt: skip
        self.errors: dict[int, BaseException] = {}
        self.threads = [
            threading.Thread(target=self._follow, args=(meeting(trainer.rank), trainer))
            for trainer in others
        ]

    def _follow(self, meeting: RankRendezvous, trainer: Any) -> None:
        spoke = RankChannel(meeting)
        algorithm: Any = Algorithm()
        dataflow: Any = self.dataflow
        shards = Shards(trainer, spoke.exchange)
        operations = Operations(
            CONFIG, "p", trainer, algorithm, spoke.shared, shards=shards, sleeps=self.sleeps
        )
        follower = Follower(spoke, operations, dataflow, meeting.ranks)
        try:
            follower.run()
        except (AstraFlowError, RuntimeError, ValueError, SystemExit) as error:
            self.errors[meeting.ranks.rank] = error
        finally:
            follower.close()

    def __enter__(self) -> Group:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.leader.close()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.parametrize("sleeps", [False, True])
def test_every_rank_leaves_the_devices_and_takes_them_again(sleeps: bool) -> None:
    with Group(Trainer(1), Trainer(2), sleeps=sleeps) as group:
        group.leader.set_up(None)
        for ours in (True, False, False, True, True, False, True):
            group.leader.take_devices(ours)
    expected = ["asleep", "awake", "asleep", "awake"] if sleeps else []
    for trainer in (group.trainer, *group.others):
        assert trainer.said[1:-2] == expected and trainer.said[-2] == "closed"


def test_every_rank_knows_the_incarnation_of_the_trainer() -> None:
    """A rank that fails while rank 0 is blocked reports for the trainer."""
    with Group(Trainer(1)) as group:
        group.leader.set_up(None)
        assert group.dataflow.incarnation == 7


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_every_rank_does_the_same_on_the_bytes_of_rank_0(host: str, tmp_path: Path) -> None:
    with Group(Trainer(1), Trainer(2), host=host) as group:
        group.leader.set_up(tmp_path)
        group.leader.adopt(tmp_path / "v", 2)
        assert group.leader.update(make_batch(), 7)["loss"] == 0.0
        assert len(list(group.leader.export())) == 2
        group.leader.probe(make_batch(), 1)
        group.leader.save(tmp_path / "s")
        group.leader.save_model(tmp_path / "m")
    expected = [
        ("setup", "/m", 3),
        ("load", str(tmp_path)),
        ("adopt", str(tmp_path / "v"), 2),
        ("step", 7, [0, 1, 2, 3, 4], "p-1"),
        "exported",
        ("save", str(tmp_path / "s")),
        ("save_model", str(tmp_path / "m")),
        "closed",
        "stopped serving",
    ]
    for trainer in (group.trainer, *group.others):
        assert trainer.said == expected
        assert trainer.proximal.tolist() == [0.0] * 5
    assert not group.errors


def test_a_loss_that_is_not_finite_anywhere_leaves_all_at_work() -> None:
    with Group(Trainer(1, NonFiniteLoss("nan"))) as group:
        group.trainer.fails = NonFiniteLoss("nan")
        group.leader.set_up(None)
        with pytest.raises(NonFiniteLoss, match=r"^nan$"):
            group.leader.update(make_batch(), 0)
        group.trainer.fails = group.others[0].fails = None
        group.leader.update(make_batch(), 1)
    assert not group.errors


@pytest.mark.parametrize(
    ("at_0", "at_1", "kind", "said"),
    [
        (
            None,
            ValueError("no such key"),
            RunFailed,
            "rank 1 of trainer-p: ValueError: no such key",
        ),
        (None, UserError("fix it"), UserError, "rank 1 of trainer-p: fix it"),
        (None, NonFiniteLoss("nan"), RunFailed, "rank 1 of trainer-p: nan"),
        (RuntimeError("closed by peer"), ValueError("x"), RunFailed, "rank 1 .*ValueError: x"),
        (NonFiniteLoss("nan"), None, RunFailed, "rank 1 .*must raise NonFiniteLoss on all ranks"),
        (RuntimeError("mine"), None, RuntimeError, "mine"),
        (UserError("fix it"), UserError("rank 0: fix it"), UserError, "^fix it$"),
        (UserError("fix it"), ValueError("x"), RunFailed, "rank 1 .*ValueError: x"),
    ],
)
def test_an_error_names_the_rank(
    at_0: Exception | None, at_1: Exception | None, kind: type[Exception], said: str
) -> None:
    with Group(Trainer(1, at_1)) as group:
        group.trainer.fails = at_0
        group.leader.set_up(None)
        with pytest.raises(kind, match=said):
            group.leader.update(make_batch(), 0)
    assert group.dataflow.failures == []


def test_a_rank_that_blocks_rank_0_reports_to_the_dataflow_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channel, "FAREWELL_S", 0.3)
    released = threading.Event()

    class Stuck(Trainer):
        """In a collective that ends when the other rank's process does."""

        def step(self, batch: Batch, algorithm: Any, step: int) -> dict[str, float]:
            assert released.wait(30)
            raise RuntimeError("closed by peer")

    with Group(Trainer(1, ValueError("mine"))) as group:
        stuck = Stuck(0)
        group.leader._trainer = group.leader._agreed._trainer = stuck  # type: ignore[assignment]
        threading.Thread(target=_after, args=(group.threads[0], released)).start()
        group.leader.set_up(None)
        with pytest.raises(RunFailed, match="rank 1 of trainer-p: ValueError: mine"):
            group.leader.update(make_batch(), 0)
    (failure,) = group.dataflow.failures
    assert failure.startswith("rank 1: ValueError: mine (") and "in step)" in failure


def _after(thread: threading.Thread, event: threading.Event) -> None:
    thread.join(30)
    event.set()


def test_a_rank_that_is_not_there_is_named() -> None:
    with Group(Trainer(1), Trainer(2), deadline_s=0.5) as group:
        group.hub._others = frozenset({1, 2, 3, 4})
        with pytest.raises(DeadlineExceeded, match="ranks 3, 4 of trainer-p"):
            group.leader.set_up(None)


@contextlib.contextmanager
def alone(rank: int) -> Iterator[RankRendezvous]:
    yield RankRendezvous.of("trainer-p", Ranks(rank, 2, rank, 0.3), "t", {"MASTER_PORT": f"{rank}"})


def test_a_missing_rank_0_is_named() -> None:
    with alone(1) as meeting:
        spoke = RankChannel(meeting)
        with pytest.raises(DeadlineExceeded, match="rank 0 of trainer-p"):
            spoke.meet()
        spoke._socket.setsockopt(zmq.LINGER, 0)
        spoke.close()


@pytest.mark.parametrize("ask", [Leader.probe, Leader.update])
def test_a_rank_that_is_gone_is_named(ask: Callable[..., Any]) -> None:
    with Group(Trainer(1, SystemExit(3))) as group:  # type: ignore[arg-type]
        group.leader.set_up(None)
        with pytest.raises(RankLost, match="rank 1 of trainer-p is lost"):
            group.leader.update(make_batch(), 0)
        with pytest.raises(RankLost, match="rank 1 of trainer-p is lost"):
            ask(group.leader, make_batch(), 1)


def test_the_others_see_when_rank_0_is_gone() -> None:
    with Group(Trainer(1)) as group:
        group.leader.set_up(None)
        group.hub._socket.close(0)
        group.threads[0].join(30)
        assert isinstance(group.errors[1], RankLost)
        group.hub._socket = group.hub._context.socket(zmq.ROUTER)
        group.hub._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_ranks_that_publish_together_receive_each_others_messages(host: str) -> None:
    with Group(Trainer(1), Trainer(2), host=host) as group:
        group.hub.meet()
        publisher = RankZeroPublisher(Shards(group.trainer, group.hub.exchange), group.leader)
        manifest: Any = publisher.publish(3, iter(()), 2)
        publisher.retain(frozenset({2}))
        assert publisher.endpoints == ("here",)
        with pytest.raises(WeightsError, match="'gathered'"):
            publisher.publish(4, iter(()), base="0" * 32)
    heard = [
        [b"at 3: %s of %d" % (what, rank) for rank in range(3)] for what in (b"rows", b"columns")
    ]
    assert manifest == heard
    for trainer in (group.trainer, *group.others):
        assert trainer.said[:2] == [heard, frozenset({2})]


def test_a_rank_that_cannot_publish_is_named_and_frees_the_others() -> None:
    with Group(Trainer(1), Trainer(2, fails=RuntimeError("no memory"))) as group:
        group.hub.meet()
        with pytest.raises(RunFailed, match="rank 2 of trainer-p: RuntimeError: no memory"):
            group.leader.publish_shards(3, None)
    assert group.errors.keys() == {2}
    assert group.others[0].said == ["closed", "stopped serving"]


def test_rank_0_exits_when_each_remaining_rank_has_been_notified() -> None:
    meeting = RankRendezvous.of(
        "trainer-p", Ranks(0, 3, 0, 30.0), "t", {"TORCHELASTIC_RUN_ID": "end"}
    )
    hub = RankZeroChannel(meeting)
    spokes = [RankChannel(replace(meeting, ranks=Ranks(rank, 3, rank, 30.0))) for rank in (1, 2)]
    with ThreadPoolExecutor(1) as pool:
        meets = pool.submit(hub.meet)
        for spoke in spokes:
            spoke.meet()
        meets.result(30)
        spokes[1].close()
        while hub._reaches(2, msgspec.msgpack.encode(RankPing())):
            pass
        closes = pool.submit(hub.close)
        assert spokes[0].order() == (End(), b"")
        with pytest.raises(TimeoutError):
            closes.result(2 * channel.LOOK_EVERY_MS / 1000)
        spokes[0].answer(Left())
        closes.result(30)
    spokes[0].close()


def test_ranks_publish_again_after_rank_0_could_not() -> None:
    with Group(Trainer(1)) as group:
        group.hub.meet()
        group.trainer.fails = WeightsError("disk full")
        with pytest.raises(WeightsError, match="disk full"):
            group.leader.publish_shards(3, None)
        group.trainer.fails = None
        assert group.leader.publish_shards(4, None)
    assert not group.errors


@pytest.mark.parametrize(
    ("publish", "ranks", "flags", "problem", "kind", "expected"),
    [
        ("auto", 2, "sharded", "", "full", True),
        ("sharded", 2, "sharded", "", "full", True),
        ("gathered", 2, "sharded", "", "full", False),
        ("auto", 1, "sharded", "", "full", False),
        ("sharded", 1, "", "", "full", False),
        ("auto", 2, "", "", "full", False),
        ("auto", 2, "sharded", "one address", "full", False),
        ("auto", 2, "sharded", "", "adapter", False),
        ("sharded", 2, "", "", "full", "'mine' accepts only whole tensors from one process"),
        ("sharded", 2, "sharded", "one address", "full", "one address"),
        ("sharded", 2, "sharded", "", "adapter", "an adapter is published whole"),
    ],
)
def test_when_ranks_publish_their_own_blocks(
    publish: str, ranks: int, flags: str, problem: str, kind: str, expected: bool | str
) -> None:
    trainer: Any = SimpleNamespace(publish=publish, weights_kind=kind)
    transport: Any = SimpleNamespace(no_shards=lambda one_host: problem)
    table: Any = SimpleNamespace(transport=SimpleNamespace(use="mine"))
    meeting = RankRendezvous.of("trainer-p", Ranks(0, ranks, 0), "t", {})
    asked = (table, trainer, frozenset({"sharded_export"}), transport, frozenset({flags}), meeting)
    if isinstance(expected, str):
        with pytest.raises(UserError, match=f"publish = 'sharded', and .*{expected}; use"):
            sharded(*asked)
        return
    assert (sharded(*asked) is not None) == expected
    without = (table, trainer, frozenset[str](), transport, frozenset({flags}), meeting)
    assert sharded(*without) is None
