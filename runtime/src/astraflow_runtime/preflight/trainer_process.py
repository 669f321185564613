"""The trainer of one policy, for the doctor: ``python -m astraflow_runtime.preflight.trainer_process SPEC``.

Runs with the interpreter that the config names for the trainer. Does what a trainer of a run does,
but only on request, and never an update. With several ranks, each a process under torchrun, all get
the same requests, and the reply of the first counts.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zmq

from astraflow_core.component import Kind
from astraflow_core.config.load import catalog_of_run, component_context
from astraflow_core.protocols.trainer import Trainer
from astraflow_core.protocols.transport import Publisher
from astraflow_core.types import ExportedTensor, Ranks
from astraflow_core.types.weights import DTYPE_BYTES
from astraflow_engine_host.failures import as_failure
from astraflow_engine_host.spec import TOKEN_VARIABLE, ChildSpec, read_spec
from astraflow_runtime.preflight import trainer_protocol as protocol
from astraflow_runtime.preflight.rows import as_batch
from astraflow_runtime.trainer.adapters import base_digest
from astraflow_runtime.trainer.ranks.rendezvous import ranks_of
from astraflow_wire.frames import Frame, encode_frame
from astraflow_wire.host.parent import end_with

log = logging.getLogger("astraflow.preflight")
_LOOK_EVERY_S = 0.5


class _Asked:
    """A trainer and, on the first rank, its publisher, and their replies."""

    def __init__(
        self, policy: str, model: Path, trainer: Trainer, publisher: Publisher | None
    ) -> None:
        self._policy, self._model = policy, model
        self._trainer, self._publisher = trainer, publisher

    def answer(self, frame: Frame) -> bytes | None:
        """The reply to a request; ``None`` for the request to exit."""
        match protocol.decode_to_trainer(frame):
            case protocol.AskLogprobs(temperature=temperature):
                return encode_frame(protocol.Logprobs(), [self._logprobs(frame, temperature)])
            case protocol.AskPublish(version=version, garbled=garbled):
                if self._publisher is None:
                    return encode_frame(self._take_part(), [])
                return encode_frame(self._publish(self._publisher, version, garbled), [])
            case _:
                return None

    def _logprobs(self, frame: Frame, temperature: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        tokens, lengths, prompts = (np.frombuffer(buffer, np.int32) for buffer in frame.buffers)
        batch = as_batch(self._policy, tokens, lengths, prompts, temperature)
        return np.asarray(self._trainer.logprobs(batch, "current"), np.float32)

    def _take_part(self) -> protocol.TrainerReady:
        """Take part in the two exports of a publication."""
        for _ in range(2):
            for _ in self._trainer.export():
                pass
        return protocol.TrainerReady()

    def _publish(self, publisher: Publisher, version: int, garbled: bool) -> protocol.Published:
        alter = _garbled if garbled else _same
        tensors = [
            protocol.TensorDigest(
                tensor.name,
                tensor.dtype,
                tuple(tensor.shape),
                xxhash.xxh3_128_hexdigest(memoryview(tensor.data).cast("B")),
            )
            for tensor in map(alter, self._trainer.export())
        ]
        adapter = getattr(self._trainer, "weights_kind", "full") == "adapter"
        manifest = publisher.publish(
            version,
            map(alter, self._trainer.export()),
            base=base_digest(self._model) if adapter else None,
        )
        return protocol.Published(publisher.endpoints, manifest.digest, manifest.size, tensors)


def _same(tensor: ExportedTensor) -> ExportedTensor:
    return tensor


def _garbled(tensor: ExportedTensor) -> ExportedTensor:
    elements = np.frombuffer(memoryview(tensor.data).cast("B"), f"V{DTYPE_BYTES[tensor.dtype]}")
    return replace(tensor, data=elements[::-1].tobytes())


def _start(spec: ChildSpec, ranks: Ranks) -> tuple[Trainer, Publisher | None]:
    config, directory = spec.run_config, Path(spec.directory)
    table = config.policies[spec.policy]
    catalog = catalog_of_run(config, directory)
    name = f"trainer-{spec.policy}"
    token = os.environ.get(TOKEN_VARIABLE, "")
    context = component_context(config, directory, "trainer", spec.policy, name, token)
    context = replace(context, ranks=ranks)
    trainer: Trainer = catalog.build(Kind.TRAINER, table.trainer, context)
    steps = config.run.steps * table.mini_batches
    trainer.setup(Path(table.model), total_steps=steps, needs=frozenset())
    if ranks.rank:
        return trainer, None
    publisher: Publisher = catalog.build(Kind.TRANSPORT, table.transport, context).publisher()
    return trainer, publisher


def _answer(asked: _Asked, frame: Frame) -> bytes | None:
    try:
        return asked.answer(frame)
    except Exception as error:  # reported to the doctor; the traceback stays in the log
        log.exception("the trainer failed")
        return encode_frame(protocol.TrainerSideFailed(as_failure(error)), [])


def _end_with(doctor: int, ranks: Ranks) -> None:
    """Exit with the doctor: ranks are children of torchrun, which does not watch it."""
    if ranks.size == 1:
        end_with(doctor, cleans_up=False)
        return

    def watch() -> None:
        while True:
            try:
                os.kill(doctor, 0)
            except ProcessLookupError:
                os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(_LOOK_EVERY_S)

    end_with(os.getppid(), cleans_up=False)
    threading.Thread(target=watch, name="end-with-doctor", daemon=True).start()


def main() -> int:
    """The process's entry point."""
    spec = read_spec(Path(sys.argv[1]))
    config = spec.run_config
    table = config.policies[spec.policy]
    who, deadline_s = f"trainer {spec.policy}", config.run.start_deadline_s
    ranks = ranks_of(os.environ, table.trainer.ranks, who, deadline_s)
    _end_with(spec.parent, ranks)
    logging.basicConfig(level=logging.INFO)
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.setsockopt(zmq.LINGER, 1000)
        socket.connect(protocol.address_of(spec.address, ranks.rank))
        try:
            trainer, publisher = _start(spec, ranks)
        except Exception as error:  # reported to the doctor; the traceback stays in the log
            log.exception("the trainer of policy %r did not start", spec.policy)
            socket.send(encode_frame(protocol.TrainerSideFailed(as_failure(error)), []))
            return 1
        socket.send(encode_frame(protocol.TrainerReady(), []))
        asked = _Asked(spec.policy, Path(table.model), trainer, publisher)
        try:
            while (answer := _answer(asked, Frame(socket.recv()))) is not None:
                socket.send(answer)
            return 0
        finally:
            if publisher is not None:
                publisher.close()
            trainer.close()


if __name__ == "__main__":
    sys.exit(main())
