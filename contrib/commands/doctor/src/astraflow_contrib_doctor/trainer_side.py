"""The doctor's end of the wire to a trainer in a separate process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import zmq
import zmq.asyncio

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import DeadlineExceeded, PreflightError, RunFailed
from astraflow_core.types import Announcement
from astraflow_engine_host.spec import ChildSpec, write_spec
from astraflow_runtime.preflight import trainer_protocol as protocol
from astraflow_runtime.preflight.rows import Floats, MeasuredRow, sampled_parts
from astraflow_runtime.raas.child import Child
from astraflow_wire.frames import Frame, encode_frame

MODULE = "astraflow_runtime.preflight.trainer_process"
CLOSE_S = 6.0
FAILED_S = 2.0


class TrainerSide:
    """A trainer that is set up, with a socket for each of its ranks; every answer has a deadline."""

    def __init__(
        self,
        policy: str,
        transport: str,
        child: Child,
        sockets: Sequence[zmq.asyncio.Socket],
        deadline_s: float,
    ) -> None:
        self._policy, self._transport, self._child = policy, transport, child
        self._sockets, self._deadline_s = sockets, deadline_s

    async def logprobs(self, rows: Sequence[MeasuredRow], temperature: float) -> list[Floats]:
        """Log-probs of the sampled tokens of each row at ``temperature``, float32 ``[T]``."""
        return sampled_parts(rows, await self.whole_logprobs(rows, temperature))

    async def whole_logprobs(self, rows: Sequence[MeasuredRow], temperature: float) -> Floats:
        """The same for every token of the packed rows, float32 ``[N]``; 0 at the first of a row."""
        tokens = np.concatenate([row.whole for row in rows]).astype(np.int32)
        lengths = np.array([len(row.whole) for row in rows], np.int32)
        prompts = np.array([len(row.prompt) for row in rows], np.int32)
        asked = encode_frame(protocol.AskLogprobs(temperature), [tokens, lengths, prompts])
        _, frame = await self._request(asked, "log-probs", self._deadline_s)
        answer: Floats = np.frombuffer(frame.buffers[0], np.float32)
        if len(answer) != len(tokens):
            raise RunFailed(
                f"trainer {self._policy} gave {len(answer)} log-probs for {len(tokens)} tokens"
            )
        return answer

    async def publish(
        self, version: int, garbled: bool = False
    ) -> tuple[Announcement, list[protocol.TensorDigest]]:
        """Publish the weights unchanged, or garbled; what to fetch, and the digests on the trainer's side."""
        asked = encode_frame(protocol.AskPublish(version, garbled), [])
        answer, _ = await self._request(
            asked, f"the publication of version {version}", self._deadline_s
        )
        assert isinstance(answer, protocol.Published)
        announcement = Announcement(
            self._policy, version, self._transport, answer.endpoints, answer.digest, answer.size
        )
        return announcement, answer.tensors

    async def _request(
        self, frame: bytes, what: str, deadline_s: float
    ) -> tuple[protocol.FromTrainer, Frame]:
        await self.send(frame)
        return await self.receive(what, deadline_s)

    async def send(self, frame: bytes) -> None:
        """Send to every rank."""
        for socket in self._sockets:
            await socket.send(frame)

    async def receive(self, what: str, deadline_s: float) -> tuple[protocol.FromTrainer, Frame]:
        """The next message of every rank, of which that of the first is returned; raises what the trainer raised, and
        if it ends or says nothing."""
        words = [asyncio.ensure_future(socket.recv()) for socket in self._sockets]
        end = asyncio.ensure_future(self._child.ended())
        until = asyncio.get_running_loop().time() + deadline_s
        try:
            while silent := {word for word in words if not word.done()}:
                left = until - asyncio.get_running_loop().time()
                await asyncio.wait(
                    {*silent, end}, timeout=max(left, 0), return_when=asyncio.FIRST_COMPLETED
                )
                if end.done():
                    # What it said last may still be on its way.
                    await asyncio.wait(silent, timeout=0.5)
                self._raise_failure(words)
                if all(word.done() for word in words):
                    break
                if end.done():
                    raise RunFailed(f"trainer {self._policy} {end.result()} before it gave {what}")
                if left <= 0:
                    raise DeadlineExceeded(f"trainer {self._policy}", what, deadline_s)
            self._raise_failure(words)
            frame = Frame(words[0].result())
        finally:
            for waiting in (*words, end):
                waiting.cancel()
            await asyncio.gather(*words, end, return_exceptions=True)
        return protocol.decode_from_trainer(frame), frame

    def _raise_failure(self, words: Sequence[asyncio.Future[bytes]]) -> None:
        for rank, word in enumerate(words):
            message = protocol.decode_from_trainer(Frame(word.result())) if word.done() else None
            if isinstance(message, protocol.TrainerSideFailed):
                failure = message.failure
                who = f"trainer {self._policy}" + (f", rank {rank}" if len(words) > 1 else "")
                at = f" ({failure.where})" if failure.where else ""
                raise RunFailed(f"{who}: {failure.kind}: {failure.message}{at}")


@asynccontextmanager
async def trainer_side(
    config: RunConfig, directory: Path, policy: str, token: str, sockets: Path
) -> AsyncIterator[TrainerSide]:
    """Start the trainer of a policy, and end it with the context."""
    address = f"ipc://{sockets / f'trainer-{policy}'}"
    spec = ChildSpec(
        config=config.model_dump_json(),
        directory=str(directory),
        raas="doctor",
        parent=os.getpid(),
        policy=policy,
        address=address,
    )
    path = directory / "state" / f"trainer-{policy}.json"
    write_spec(path, spec)
    table = config.policies[policy]
    async with AsyncExitStack() as stack:
        ends = [stack.enter_context(_bound(address, rank)) for rank in range(table.trainer.ranks)]
        try:
            child = await Child.start(
                MODULE, path, token, table.trainer.python, through=_torchrun(table.trainer.ranks)
            )
        except OSError as error:
            raise PreflightError(
                f"cannot start the interpreter {table.trainer.python!r} of "
                f"[policies.{policy}.trainer] python: {error.strerror}"
            ) from error
        side = TrainerSide(policy, table.transport.use, child, ends, config.run.deadline_s)
        try:
            await side.receive("its set-up", config.run.start_deadline_s)
            yield side
            await side.send(encode_frame(protocol.AskClose(), []))
            await child.stop(CLOSE_S)
        except BaseException:
            # One that has failed is about to end, and says why until then.
            await asyncio.shield(child.stop(FAILED_S))
            raise
        finally:
            await asyncio.shield(child.ended())


def _bound(address: str, rank: int) -> zmq.asyncio.Socket:
    socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 0)
    socket.bind(protocol.address_of(address, rank))
    return socket


def _torchrun(ranks: int) -> tuple[str, ...]:
    if ranks == 1:
        return ()
    return "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)
