"""The RaaS's half of transports that deliver versions into engines: asks for deliveries; the files are HTTP's."""

from __future__ import annotations

import contextlib
import http.client
import json
import time
from pathlib import Path

import msgspec

from astraflow_core.errors import WeightsError, WireError
from astraflow_core.types import Announcement, Delivery, Manifest
from astraflow_weights.addresses import address_of
from astraflow_weights.direct.delivery_server import OBJECT
from astraflow_weights.failures import PublisherFailed
from astraflow_weights.fetch.client import VersionClient
from astraflow_weights.fetch.receiver import HttpReceiver
from astraflow_wire.decoding import from_json, from_msgpack
from astraflow_wire.http.tls import UntrustedPeer, client_tls

MAX_OBJECT = 1024
MAX_DELIVERY = 64 << 20


DONE_S = 5.0


class _Desk(msgspec.Struct):
    ask: str


class _Refusal(msgspec.Struct):
    error: str


class DirectHttpReceiver(HttpReceiver):
    """See :class:`astraflow_core.protocols.transport.DirectReceiver`. The publisher is an HTTP publisher
    with an additional :class:`astraflow_weights.direct.delivery_server.DeliveryServer`."""

    def __init__(self, directory: Path, token: str, *, streams: int) -> None:
        super().__init__(directory, token, streams=streams)
        self._tickets: dict[str, str] = {}

    def meet(
        self, announcement: Announcement, member: str, workers: int, deadline_s: float
    ) -> Delivery:
        """Ask the delivery server, which may reply late."""
        deadline = time.monotonic() + deadline_s
        problems = []
        for endpoint in announcement.endpoints:
            try:
                with VersionClient(announcement, endpoint, self._token, deadline) as client:
                    manifest = client.manifest()
                    where = from_json(client.read(OBJECT, MAX_OBJECT), _Desk, "malformed desk").ask
                asked = json.dumps({"member": member, "workers": workers})
                url = f"{where}/{announcement.version}"
                answer = self._request("POST", url, asked, deadline)
                delivery = from_msgpack(answer, Delivery, "malformed delivery")
                check(delivery, manifest)
                if delivery.ticket:
                    self._tickets[delivery.ticket] = f"{url}/{delivery.ticket}"
                return delivery
            except (PublisherFailed, WireError, OSError, http.client.HTTPException) as error:
                problems.append(f"{endpoint}: {error}")
        who = f"version {announcement.version} of policy {announcement.policy!r}"
        raise WeightsError(f"no direct delivery of {who}: {'; '.join(problems)}")

    def done(self, announcement: Announcement, delivery: Delivery) -> None:
        """Return the ticket, if there is one; otherwise it would expire."""
        url = self._tickets.pop(delivery.ticket, "")
        if url:
            with contextlib.suppress(PublisherFailed, OSError, http.client.HTTPException):
                self._request("DELETE", url, "", time.monotonic() + DONE_S)

    def _request(self, method: str, url: str, body: str, deadline: float) -> bytes:
        address = address_of(url, "http", "https")
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        left = max(deadline - time.monotonic(), 0.001)
        host, port = address.hostname or "", address.port
        try:
            context = client_tls(url)
        except UntrustedPeer as error:
            raise PublisherFailed(str(error)) from error
        connection = (
            http.client.HTTPConnection(host, port, timeout=left)
            if context is None
            else http.client.HTTPSConnection(host, port, timeout=left, context=context)
        )
        try:
            connection.request(method, address.path, body, headers)
            answer = connection.getresponse()
            content = answer.read(MAX_DELIVERY)
        finally:
            connection.close()
        if answer.status != 200:
            raise PublisherFailed(f"{answer.status}: {reason(content)}")
        return content


def reason(content: bytes) -> str:
    """The reason that a delivery server gives for a refusal."""
    try:
        return from_json(content, _Refusal, "no reason").error
    except WireError:
        return "no reason given"


def check(delivery: Delivery, manifest: Manifest) -> None:
    """Raise :class:`PublisherFailed` unless the buckets hold the tensors of the manifest, in its order."""
    given = [(t.name, t.dtype, t.shape) for b in delivery.buckets for t in b.tensors]
    if given != [(t.name, t.dtype, t.shape) for t in manifest.tensors]:
        raise PublisherFailed("its buckets hold other tensors than its manifest")
    if delivery.version != manifest.version:
        raise PublisherFailed(f"it offers a delivery of version {delivery.version}")
    for bucket in delivery.buckets:
        end = 0
        for tensor in bucket.tensors:
            if tensor.start != end:
                raise PublisherFailed(f"tensor {tensor.name!r} does not follow the previous one")
            end = tensor.end
