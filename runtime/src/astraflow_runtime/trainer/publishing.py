"""Numbers the versions of the policy, publishes them by the transport and announces them to the
dataflow.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from astraflow_core.errors import UserError, WeightsError
from astraflow_core.protocols.transport import Publisher, Transport
from astraflow_core.types import Announcement
from astraflow_runtime.trainer.adapters import base_digest, merge
from astraflow_runtime.trainer.operations import Operations
from astraflow_runtime.trainer.upstream import DataflowClient
from astraflow_wire.messages import Probe

log = logging.getLogger(__name__)


class Versions:
    """The published versions of a policy; version numbers must increase and are never used twice.
    ``model`` is the base of its adapters, ``no_adapters()`` returns why they cannot be sent, if so;
    ``publisher`` replaces the transport's if several ranks publish together.
    """

    def __init__(
        self,
        transport: Transport,
        transport_name: str,
        dataflow: DataflowClient,
        model: Path,
        no_adapters: Callable[[], str] = lambda: "",
        publisher: Publisher | None = None,
    ) -> None:
        self._transport, self._name, self._dataflow = transport, transport_name, dataflow
        self._model, self._no_adapters = model, no_adapters
        self._base: str | None = None
        self._publisher = publisher or transport.publisher()
        self._announced: dict[int, Announcement] = {}
        self.newest = -1

    @property
    def figures(self) -> dict[str, float]:
        """What the transport measured of the newest version, such as the size of its delta."""
        return dict(getattr(self._publisher, "figures", {}))

    def publish(self, trainer: Operations, version: int, probe: Probe | None = None) -> float:
        """Publish the trainer's weights as ``version`` and announce it, with a probe of them if there is one;
        returns the seconds it took."""
        if version <= self.newest:
            raise WeightsError(
                f"version {version} of {self._dataflow.policy} was already published"
            )
        started = time.monotonic()
        derives_from = self.newest if self.newest >= 0 else None
        base = self._base_of(trainer)
        given = {} if base is None else {"base": base}
        manifest = self._publisher.publish(version, trainer.export(), derives_from, **given)
        announcement = Announcement(
            policy=self._dataflow.policy,
            version=version,
            transport=self._name,
            endpoints=self._publisher.endpoints,
            digest=manifest.digest,
            size=manifest.size,
        )
        self._announced[version] = announcement
        self.newest = version
        self.retain(self._dataflow.announce(announcement, probe))
        seconds = time.monotonic() - started
        log.info("published version %d: %.1f MB in %.3f s", version, manifest.size / 1e6, seconds)
        return seconds

    def _base_of(self, trainer: Operations) -> str | None:
        """The digest of the base model if the trainer exports an adapter; computed once."""
        if getattr(trainer, "weights_kind", "full") == "full":
            return None
        if self._base is None:
            if problem := self._no_adapters():
                raise UserError(
                    f"the trainer of policy {self._dataflow.policy!r} trains an adapter, and {problem}"
                )
            self._base = base_digest(self._model)
        return self._base

    def retain(self, versions: list[int]) -> None:
        """Release all versions except the newest and these."""
        kept = frozenset(versions)
        self._publisher.retain(kept)
        for version in [v for v in self._announced if v != self.newest and v not in kept]:
            del self._announced[version]

    def write(self, version: int, folder: Path, deadline_s: float) -> None:
        """Replace the weights of the Hugging Face ``folder`` by those of a retained version; an
        adapter is merged with its base.
        """
        if version not in self._announced:
            raise WeightsError(
                f"version {version} of {self._dataflow.policy} is not retained; "
                f"retained versions: {sorted(self._announced)}"
            )
        receiver = self._transport.receiver()
        try:
            source = receiver.fetch(self._announced[version], deadline_s)
            for weights in [
                *folder.glob("*.safetensors"),
                *folder.glob("*.safetensors.index.json"),
            ]:
                weights.unlink()
            if source.kind == "full":
                shutil.copyfile(source.path, folder / "model.safetensors")
            else:
                merge(self._model, source.path, folder / "model.safetensors")
            receiver.release(source)
        finally:
            receiver.close()

    def close(self) -> None:
        """Stop serving all versions."""
        self._publisher.close()
