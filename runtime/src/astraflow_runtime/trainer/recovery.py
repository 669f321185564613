"""The weights of a trainer that has lost its state, from those that still hold a version."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.errors import Refused, WeightsError
from astraflow_core.protocols.transport import Transport
from astraflow_core.types import Announcement, WeightSource
from astraflow_runtime.trainer.upstream import DataflowClient
from astraflow_wire.messages import AnnouncementMessage

log = logging.getLogger(__name__)

OFFERS_S = 10.0
"""How long RaaS have to offer what they hold."""
STORE_S = 10.0
"""How long the newest version is looked for where it was announced, if a RaaS has an older one."""
WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json")
"""Endings of files of a model's folder that hold weights, or say where they are."""

ADAPTER = "adapter_model.safetensors"


@dataclass(frozen=True, slots=True)
class Recovered:
    """A ``version`` of the policy as a Hugging Face ``folder``."""

    version: int
    folder: Path


class Recovery:
    """Finds a version of the policy. ``model`` is the folder that it was trained from; ``obstacle`` says why this trainer
    cannot continue from a version, and is empty if it can; ``kind`` is what it publishes, "full" or "adapter"."""

    def __init__(
        self,
        dataflow: DataflowClient,
        transport: Transport,
        model: Path,
        folder: Path,
        deadline_s: float,
        obstacle: str = "",
        kind: str = "full",
    ) -> None:
        self._dataflow, self._transport = dataflow, transport
        self._model, self._folder = model, folder
        self._deadline_s, self._obstacle, self._kind = deadline_s, obstacle, kind

    @contextlib.contextmanager
    def found(self, refused: Refused) -> Iterator[Recovered]:
        """The newest version that is available, complete and verified by its digest, within the ``with`` block.
        ``refused`` says why there is no state; re-raised, with the reasons, if there is no version either."""
        if self._obstacle:
            raise Refused(refused.status, f"{refused}. {self._obstacle}") from refused
        answer = self._dataflow.recover(OFFERS_S)
        problems = list(answer.problems)
        receiver = self._transport.receiver()
        try:
            for message, deadline_s in self._in_turn(answer.offered, answer.announced):
                try:
                    source = receiver.fetch(_announcement(message), deadline_s)
                    _check_kind(source, self._kind)
                except WeightsError as error:
                    log.warning("%s", error)
                    problems.append(str(error))
                    continue
                log.info(
                    "version %d of %r is here, %.1f MB with digest %s",
                    message.version,
                    message.policy,
                    message.size / 1e6,
                    source.digest,
                )
                with tempfile.TemporaryDirectory(dir=self._folder, prefix="recovered-") as folder:
                    link_model(self._model, source, Path(folder))
                    yield Recovered(message.version, Path(folder))
                receiver.release(source)
                return
        finally:
            receiver.close()
        said = "; ".join(problems) or "no version was published"
        raise Refused(
            refused.status,
            f"{refused}. Its weights cannot be recovered from a published version either: {said}",
        ) from refused

    def _in_turn(
        self, offered: list[AnnouncementMessage], announced: AnnouncementMessage | None
    ) -> Iterator[tuple[AnnouncementMessage, float]]:
        """The newest first: what to fetch, and for how long."""
        if announced is not None and offered and offered[0].version < announced.version:
            yield announced, min(STORE_S, self._deadline_s)
            announced = None
        for message in offered:
            yield message, self._deadline_s
        if announced is not None:
            yield announced, self._deadline_s


def link_model(model: Path, source: WeightSource, folder: Path) -> None:
    """Make ``folder`` the Hugging Face folder ``model`` with the weights of a version, or with its adapter next
    to those that it has; nothing is copied."""
    adapter = source.kind == "adapter"
    brought = ADAPTER if adapter else "model.safetensors"
    for file in model.iterdir():
        if file.name != brought and (adapter or not file.name.endswith(WEIGHTS)):
            (folder / file.name).symlink_to(file.resolve())
    (folder / brought).symlink_to(source.path.resolve())


def _announcement(message: AnnouncementMessage) -> Announcement:
    return Announcement(
        message.policy,
        message.version,
        message.transport,
        tuple(message.endpoints),
        message.digest,
        message.size,
    )


def _check_kind(source: WeightSource, kind: str) -> None:
    if source.kind != kind:
        raise WeightsError(
            f"version {source.version} of {source.policy!r} has kind {source.kind!r}, and its trainer publishes {kind!r}"
        )
