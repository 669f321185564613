"""Versions for a RaaS to fetch: the weights of a model folder, published by the transport of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import component_context
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import PreflightError
from astraflow_core.protocols.transport import Publisher
from astraflow_core.types import ExportedTensor
from astraflow_wire.messages import AnnouncementMessage
from astraflow_wire.model_files.tensor_file import read_specs

NOWHERE = "http://127.0.0.1:9"
"""An address without a publisher (the discard port)."""


class Weights:
    """Publishes versions of every policy of a run; all hold what the policy's model folder holds."""

    def __init__(self, catalog: Catalog, config: RunConfig, directory: Path, token: str) -> None:
        self._config = config
        self._publishers: dict[str, Publisher] = {}
        for policy, table in config.policies.items():
            context = component_context(config, directory, "trainer", policy, policy, token)
            transport = catalog.build(Kind.TRANSPORT, table.transport, context)
            self._publishers[policy] = transport.publisher()

    def publish(self, version: int) -> Mapping[str, AnnouncementMessage]:
        """A version of every policy; what to announce, by policy."""
        announced = {}
        for policy, publisher in self._publishers.items():
            table = self._config.policies[policy]
            manifest = publisher.publish(version, _tensors(Path(table.model)))
            announced[policy] = AnnouncementMessage(
                policy=policy,
                version=version,
                transport=table.transport.use,
                endpoints=list(publisher.endpoints),
                digest=manifest.digest,
                size=manifest.size,
            )
            publisher.retain(frozenset(range(version + 1)))
        return announced

    def close(self) -> None:
        """Stop publishing."""
        for publisher in self._publishers.values():
            publisher.close()


def _tensors(model: Path) -> Iterator[ExportedTensor]:
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise PreflightError(f"{model} has no *.safetensors file: there is nothing to publish")
    for path in files:
        mapped = np.memmap(path, np.uint8, "r")
        for spec in read_specs(mapped.data):
            data = mapped[spec.start : spec.end]
            yield ExportedTensor(spec.name, spec.dtype, spec.shape, data)
