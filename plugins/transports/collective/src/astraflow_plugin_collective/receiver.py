"""The RaaS's half: asks for places in a broadcast; the files are HTTP's."""

from __future__ import annotations

import http.client
import json
import time
from urllib.parse import urlsplit

import msgspec

from astraflow_core.errors import WeightsError
from astraflow_core.types import Announcement, Delivery, Manifest
from astraflow_core.weights.client import VersionClient
from astraflow_core.weights.failures import PublisherFailed
from astraflow_core.weights.receiver import HttpReceiver
from astraflow_plugin_collective.names import OBJECT

MAX_OBJECT = 1024
MAX_DELIVERY = 64 << 20


class CollectiveReceiver(HttpReceiver):
    """See :class:`astraflow_core.protocols.transport.DirectReceiver`."""

    def meet(
        self, announcement: Announcement, member: str, workers: int, deadline_s: float
    ) -> Delivery:
        """Join the round of a version and wait for the end of its window."""
        deadline = time.monotonic() + deadline_s
        problems = []
        for endpoint in announcement.endpoints:
            try:
                with VersionClient(announcement, endpoint, self._token, deadline) as client:
                    manifest = client.manifest()
                    where = str(json.loads(client.read(OBJECT, MAX_OBJECT))["join"])
                delivery = self._join(where, announcement, member, workers, deadline)
                check(delivery, manifest)
                return delivery
            except (PublisherFailed, OSError, http.client.HTTPException, ValueError) as error:
                problems.append(f"{endpoint}: {error}")
        who = f"version {announcement.version} of policy {announcement.policy!r}"
        raise WeightsError(f"no broadcast of {who}: {'; '.join(problems)}")

    def done(self, announcement: Announcement, delivery: Delivery) -> None:
        """A broadcast leaves nothing behind."""

    def _join(
        self, where: str, wanted: Announcement, member: str, workers: int, deadline: float
    ) -> Delivery:
        address = urlsplit(where)
        body = json.dumps({"member": member, "workers": workers})
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        left = max(deadline - time.monotonic(), 0.001)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=left)
        try:
            connection.request("POST", f"{address.path}/{wanted.version}", body, headers)
            answer = connection.getresponse()
            content = answer.read(MAX_DELIVERY)
        finally:
            connection.close()
        if answer.status != 200:
            raise PublisherFailed(f"{answer.status}: {reason(content)}")
        try:
            return msgspec.msgpack.decode(content, type=Delivery)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise PublisherFailed(f"malformed delivery: {error}") from error


def reason(content: bytes) -> str:
    """Why a desk refuses, in its words."""
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return "no reason given"


def check(delivery: Delivery, manifest: Manifest) -> None:
    """Raise :class:`PublisherFailed` unless the buckets hold the tensors of the manifest, in its order."""
    given = [(t.name, t.dtype, t.shape) for b in delivery.buckets for t in b.tensors]
    if given != [(t.name, t.dtype, t.shape) for t in manifest.tensors]:
        raise PublisherFailed("its buckets hold other tensors than its manifest")
    if (delivery.version, delivery.rendezvous is None) != (manifest.version, False):
        raise PublisherFailed(f"it offers a delivery of version {delivery.version}")
    for bucket in delivery.buckets:
        end = 0
        for tensor in bucket.tensors:
            if tensor.start != end:
                raise PublisherFailed(f"tensor {tensor.name!r} does not follow the one before it")
            end = tensor.end
