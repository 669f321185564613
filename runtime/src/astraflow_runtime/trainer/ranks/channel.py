"""The channel between rank 0 of a trainer and the others: ZeroMQ, msgpack, no pickle."""

from __future__ import annotations

import errno
import time
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import zmq

from astraflow_core.errors import (
    AstraFlowError,
    DeadlineExceeded,
    NonFiniteLoss,
    RunFailed,
    UserError,
    WireError,
)
from astraflow_runtime.trainer.ranks.rank_commands import (
    Abandon,
    Answer,
    CommandDone,
    CommandFailed,
    End,
    FromRank,
    Hello,
    Left,
    Order,
    RankPing,
    RankReply,
    Result,
    ToRank,
)
from astraflow_runtime.trainer.ranks.rendezvous import RankRendezvous
from astraflow_wire.decoding import from_msgpack
from astraflow_wire.host.sockets import agreed_folder, socket_folder

LOOK_EVERY_MS = 200
FAREWELL_S = 10.0


class RankLost(AstraFlowError):
    """A rank of the trainer is gone: the group has to restart from its last checkpoint."""


class Abandoned(AstraFlowError):
    """Rank 0 abandoned an operation in which this rank takes part."""


class RankZeroChannel:
    """The channel of rank 0 to the other ranks."""

    def __init__(self, meeting: RankRendezvous) -> None:
        self._meeting, self._deadline_s = meeting, meeting.ranks.deadline_s
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.ROUTER)
        for option in (zmq.SNDHWM, zmq.RCVHWM):
            self._socket.setsockopt(option, 0)
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._folder = None
        if meeting.host:
            meeting.secure(self._socket, server=True)
            address = f"tcp://*:{meeting.port}"
        else:
            self._folder = socket_folder(meeting.name)
            address = f"ipc://{self._folder.path}/ranks"
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            raise RunFailed(
                f"rank 0 of {meeting.who} cannot listen on {address}: {error}"
            ) from error
        self._others = frozenset(range(1, meeting.ranks.size))
        self._met: set[int] = set()
        self._answers: dict[int, Answer] = {}

    def meet(self) -> None:
        """Wait until every rank has connected; :class:`DeadlineExceeded` names those that have not."""
        missing, until = self._others - self._met, time.monotonic() + self._deadline_s
        while missing:
            if time.monotonic() > until:
                raise DeadlineExceeded(
                    f"{_named(missing)} of {self._meeting.who}",
                    f"the other ranks have connected to rank 0 of {self._meeting.ranks.size}; see their output above",
                    self._deadline_s,
                )
            for rank, said in self._receive():
                if isinstance(said, Hello):
                    self._met.add(rank)
            missing = self._others - self._met

    def broadcast(self, message: Order | Result, body: bytes = b"") -> None:
        """Send to every other rank; :class:`RankLost` if one is gone."""
        encoded = msgspec.msgpack.encode(message)
        if not isinstance(message, Result):
            self._answers = {}
        lost = {rank for rank in self._others if not self._reaches(rank, encoded, body)}
        if lost:
            raise self._loss(lost)

    def share(self, result: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Send the result of rank 0 to the others."""
        result = np.ascontiguousarray(result, np.float32)
        self.broadcast(Result(), result.tobytes())
        return result

    def exchange(self, mine: bytes) -> list[bytes]:
        """All-gather: the values of all ranks, in order of rank. An error of a rank is raised here
        with its name.
        """
        said, until = {0: mine}, time.monotonic() + self._deadline_s
        ping = msgspec.msgpack.encode(RankPing())
        while silent := self._others - said.keys():
            if time.monotonic() > until:
                raise DeadlineExceeded(
                    f"{_named(silent)} of {self._meeting.who}",
                    "the other ranks have replied",
                    self._deadline_s,
                )
            replies = self._receive()
            for rank, message in replies:
                if isinstance(message, RankReply):
                    said[rank] = message.body
                elif isinstance(message, Answer):
                    self._answers.setdefault(rank, message)
            self._raise_failure(symmetric=False)
            if not replies and (lost := {r for r in silent if not self._reaches(r, ping)}):
                raise self._loss(lost)
        everything = [said[rank] for rank in sorted(said)]
        self.broadcast(Result(), msgspec.msgpack.encode(everything))
        return everything

    def gather(self) -> bool:
        """Wait for the replies to the last command; returns whether all are true. An error of a
        rank is raised here with its name.
        """
        self._collect(self._deadline_s)
        if silent := self._others - self._answers.keys():
            raise DeadlineExceeded(
                f"{_named(silent)} of {self._meeting.who}", "rank 0 is done", self._deadline_s
            )
        self._raise_failure(symmetric=False)
        return all(isinstance(said, CommandDone) and said.holds for said in self._answers.values())

    def handle_failure(self, error: Exception) -> None:
        """The operation failed on rank 0. Raise the cause if another rank is gone or failed first.
        No single rank is the cause if no loss was finite on any, or if each has an error of the
        user.
        """
        abandon = msgspec.msgpack.encode(Abandon())
        for rank in self._others:
            self._reaches(rank, abandon)  # a failed rank may have left already
        self._collect(FAREWELL_S)
        self._raise_failure(isinstance(error, NonFiniteLoss), isinstance(error, UserError))

    def _raise_failure(self, symmetric: bool, users: bool = False) -> None:
        for rank, said in self._answers.items():  # in the order of arrival
            if isinstance(said, CommandFailed) and not (
                (symmetric and said.not_finite) or (users and said.user)
            ):
                kind = UserError if said.user else RunFailed
                raise kind(f"rank {rank} of {self._meeting.who}: {said.error}")
            if symmetric and said == CommandDone():
                raise RunFailed(
                    f"rank {rank} of {self._meeting.who} completed a step whose loss is not finite on rank 0: the "
                    "trainer must raise NonFiniteLoss on all ranks alike"
                )

    def _collect(self, deadline_s: float) -> None:
        """Receive replies until all have arrived or the deadline has passed; :class:`RankLost` if a
        rank is gone.
        """
        until = time.monotonic() + deadline_s
        ping = msgspec.msgpack.encode(RankPing())
        while (silent := self._others - self._answers.keys()) and time.monotonic() < until:
            replies = self._receive()
            for rank, said in replies:
                if isinstance(said, Answer):
                    self._answers.setdefault(rank, said)
            if not replies and (lost := {r for r in silent if not self._reaches(r, ping)}):
                raise self._loss(lost)

    def _receive(self) -> list[tuple[int, FromRank]]:
        if not self._socket.poll(LOOK_EVERY_MS):
            return []
        identity, *parts = self._socket.recv_multipart()
        if not identity.isdigit() or len(parts) != 1:
            raise WireError(f"{self._meeting.who}: a message of {len(parts)} parts without a rank")
        said = _decoded(parts[0], FromRank, f"rank {int(identity)} of {self._meeting.who}")
        return [(int(identity), said)]

    def _reaches(self, rank: int, *parts: bytes) -> bool:
        try:
            self._socket.send_multipart([str(rank).encode(), *parts])
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            return False
        return True

    def _loss(self, ranks: set[int]) -> RankLost:
        return RankLost(
            f"{_named(ranks)} of {self._meeting.who} is lost: its process exited or its host does not respond"
        )

    def close(self) -> None:
        """End the other ranks. Messages of a closing socket may be lost, so each remaining rank
        acknowledges.
        """
        try:
            self._dismiss(FAREWELL_S)
        finally:
            self._socket.close()
            self._context.term()
            if self._folder is not None:
                self._folder.close()

    def _dismiss(self, deadline_s: float) -> None:
        until = time.monotonic() + deadline_s
        end, ping = msgspec.msgpack.encode(End()), msgspec.msgpack.encode(RankPing())
        left = {rank for rank in self._others if self._reaches(rank, end, b"")}
        while left and time.monotonic() < until:
            if replies := self._receive():
                left -= {rank for rank, said in replies if isinstance(said, Left)}
            else:
                left = {rank for rank in left if self._reaches(rank, ping)}


class RankChannel:
    """The channel of another rank to rank 0."""

    def __init__(self, meeting: RankRendezvous) -> None:
        self._meeting, self._deadline_s = meeting, meeting.ranks.deadline_s
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)  # so that a lost connection is detected
        self._socket.setsockopt(zmq.LINGER, 1000)
        self._socket.setsockopt(zmq.SNDTIMEO, int(self._deadline_s * 1000))
        self._socket.setsockopt(zmq.ROUTING_ID, str(meeting.ranks.rank).encode())
        if meeting.host:
            meeting.secure(self._socket, server=False)
            self._socket.connect(f"tcp://{meeting.host}:{meeting.port}")
        else:
            self._socket.connect(f"ipc://{agreed_folder(meeting.name)}/ranks")

    def meet(self) -> None:
        """Connect; :class:`DeadlineExceeded` if rank 0 does not reply in time."""
        hello = Hello(self._meeting.ranks.rank, self._meeting.ranks.size)
        try:
            self._socket.send(msgspec.msgpack.encode(hello))
        except zmq.Again as error:
            raise DeadlineExceeded(
                f"rank 0 of {self._meeting.who}", "it does not listen", self._deadline_s
            ) from error

    def order(self) -> tuple[Order, bytes]:
        """The next command, with its bytes; :class:`RankLost` if rank 0 is gone."""
        while True:
            message, body = self._receive()
            if not isinstance(message, Result | Abandon | RankPing):
                return message, body

    def shared(self, own: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The result of rank 0, which replaces this rank's ``own``."""
        result = self._result()
        if len(result) != 4 * own.size:
            raise WireError(
                f"rank 0 of {self._meeting.who} shared {len(result)} bytes, not {own.size} numbers"
            )
        return np.frombuffer(result, np.float32)

    def exchange(self, mine: bytes) -> list[bytes]:
        """See :meth:`RankZeroChannel.exchange`."""
        if not self._present():  # sending would block
            raise self._loss()
        self._socket.send(msgspec.msgpack.encode(RankReply(mine)))
        said: list[bytes] = _decoded(self._result(), list[bytes], f"rank 0 of {self._meeting.who}")
        return said

    def answer(self, answer: Answer | Left) -> None:
        """Report how the operation ended."""
        if not self._present():  # sending would block
            raise self._loss()
        self._socket.send(msgspec.msgpack.encode(answer))

    def failure_handled(self) -> bool:
        """Whether rank 0 handles a reported failure; it cannot while it is blocked in a collective
        by the failed rank. :class:`RankLost` if it is gone.
        """
        until = time.monotonic() + FAREWELL_S
        while time.monotonic() < until:
            if self._socket.poll(LOOK_EVERY_MS):
                message, _ = self._receive()
                if not isinstance(message, RankPing):
                    return True
            elif not self._present():
                raise self._loss()
        return False

    def _result(self) -> bytes:
        while True:
            message, body = self._receive()
            if isinstance(message, Result):
                return body
            if not isinstance(message, RankPing):
                raise Abandoned("rank 0 aborted the operation")

    def _receive(self) -> tuple[ToRank, bytes]:
        while not self._socket.poll(LOOK_EVERY_MS):
            if not self._present():
                raise self._loss()
        parts = self._socket.recv_multipart()
        message = _decoded(parts[0], ToRank, f"rank 0 of {self._meeting.who}")
        return message, parts[1] if len(parts) > 1 else b""

    def _present(self) -> bool:
        return bool(self._socket.poll(0, zmq.POLLOUT))

    def _loss(self) -> RankLost:
        return RankLost(f"rank 0 of {self._meeting.who} is lost")

    def close(self) -> None:
        """Send pending messages, and close."""
        self._socket.close()
        self._context.term()


def _decoded(body: bytes, expected: Any, who: str) -> Any:
    return from_msgpack(body, expected, f"{who} sent an invalid message")


def _named(ranks: set[int] | frozenset[int]) -> str:
    noun = "rank" if len(ranks) == 1 else "ranks"
    return f"{noun} {', '.join(map(str, sorted(ranks)))}"
