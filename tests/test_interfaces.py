"""What engine hosts and plugins serve is described in docs/processes.md, and is as described."""

from __future__ import annotations

import http.client
import re
import time
import typing
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pages.interfaces import SECTION, serving
from refusals import Refusals
from workspace import ROOT

from astraflow_engine_host import protocol as host_protocol
from astraflow_testing.conformance._transports import tensors
from astraflow_testing.conformance._transports.transport_rig import TOKEN, TransportRig
from astraflow_weights.block_range import BlockRange
from astraflow_weights.publish import server as weight_server
from astraflow_weights.publish import store as weight_store
from astraflow_weights.publish.server import WeightServer
from astraflow_weights.publish.store import VersionStore
from astraflow_weights.snapshot import Snapshot
from astraflow_wire.http.connection_limits import MAX_HEAD, Limits

PROCESSES = (ROOT / "docs" / "processes.md").read_text(encoding="utf-8")


def test_every_message_of_an_engine_host_is_described() -> None:
    members = [
        *typing.get_args(host_protocol.ToHost),
        *typing.get_args(host_protocol.FromHost),
    ]
    for member in members:
        assert f"| `{member.__struct_config__.tag}` |" in PROCESSES
    named = set(
        re.findall(
            r"protocol\.(\w+)\(",
            (ROOT / "libs/engine_host/src/astraflow_engine_host/main.py").read_text(),
        )
    )
    handled = named & {each.__name__ for each in typing.get_args(host_protocol.ToHost)}
    assert handled == {each.__name__ for each in typing.get_args(host_protocol.ToHost)}
    for kind in host_protocol.KNOWN:
        assert f"`{kind}`" in PROCESSES


def test_every_plugin_that_serves_describes_it() -> None:
    found = dict(serving())
    assert "http" in found
    for name, folder in found.items():
        readme = (folder / "README.md").read_text(encoding="utf-8")
        match = SECTION.search(readme)
        assert match is not None, f"{name}: README.md needs a section '## Interface'"
        assert match[1].strip() in PROCESSES
        assert re.search(r"\b401\b", match[1]), f"{name}: document what it refuses"


class Publisher:
    """A publisher of the transport ``http`` that holds version 1, and raw requests to it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        rig = TransportRig({"use": "http"}, folder, stack)
        publisher = rig.publisher()
        manifest = publisher.publish(1, tensors.model(1, 1))
        publisher.attach(1, "beside", b"some bytes")
        self.policy, self.digest = manifest.policy, manifest.digest
        self.server = publisher._server
        self.url = urlsplit(publisher.endpoints[0])
        store = VersionStore(BlockRange.release)
        part = BlockRange(manifest.size, manifest.block_size, ())
        store.add(Snapshot(manifest, b"", part), {})
        server = stack.enter_context(
            closing(WeightServer({manifest.policy: store}, TOKEN, "127.0.0.1", 0))
        )
        self.one_of_several = urlsplit(f"http://127.0.0.1:{server.port}")

    def wait_until_idle(self) -> None:
        end = time.monotonic() + 20
        while len(self.server.limits):
            assert time.monotonic() < end, "a connection stays open"
            time.sleep(0.005)

    def ask(
        self, method: str, path: str, token: str | None = None, **more: Any
    ) -> tuple[int, bytes]:
        url = more.pop("url", self.url)
        connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=10)
        held = more.pop("headers", {})
        path = path.replace("POLICY", self.policy).replace("VERSION", "1").replace("READER", "me")
        authorization = {"Authorization": f"Bearer {TOKEN if token is None else token}"}
        connection.request(method, path, headers={**authorization, **held}, **more)
        answer = connection.getresponse()
        try:
            return answer.status, answer.read()
        finally:
            connection.close()


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    with ExitStack() as stack:
        yield Publisher(tmp_path, stack)


def test_the_publisher_over_http_answers_as_described(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch, refusals: Refusals
) -> None:
    folder = dict(serving())["http"]
    section = SECTION.search((folder / "README.md").read_text(encoding="utf-8"))
    assert section is not None
    rows = re.findall(r"^\| (GET|DELETE) `(\S+)` \| (.*) \| (.*) \|$", section[1], re.MULTILINE)
    parts = re.findall(r"manifest\|data\|objects/|readers/", weight_server._ROUTE.pattern)
    assert len(rows) == 4 and len(parts) == 2, "a route was added or taken away: describe it"
    manifest, data, objects, readers = (path for _, path, _, _ in rows)
    beside = objects.replace("NAME", "beside")
    part, foreign = {"Range": "bytes=8-15"}, manifest.replace("POLICY", "another")
    monkeypatch.setattr(weight_store, "MAX_READERS", 1)
    reader = [{weight_server.READER_HEADER: name} for name in ("one", "two")]
    cases = [
        (200, publisher.ask("GET", manifest, headers=reader[0])),
        (429, publisher.ask("GET", manifest, headers=reader[1])),
        (200, publisher.ask("GET", data)),
        (206, publisher.ask("GET", data, headers=part)),
        (416, publisher.ask("GET", data, headers={"Range": "bytes=5-2"})),
        (416, publisher.ask("GET", data, headers={"Range": "bytes=99999999999-"})),
        (304, publisher.ask("GET", data, headers={"If-None-Match": f'"{publisher.digest}"'})),
        (200, publisher.ask("GET", beside)),
        (206, publisher.ask("GET", beside, headers={"Range": "bytes=2-5"})),
        (404, publisher.ask("GET", objects.replace("NAME", "other"))),
        (204, publisher.ask("DELETE", readers)),
        (404, publisher.ask("GET", foreign)),
        (404, publisher.ask("GET", data, headers=part, url=publisher.one_of_several)),
        (404, publisher.ask("GET", manifest.replace("VERSION", "9"))),
        (404, publisher.ask("GET", "/v1/nothing")),
        (401, publisher.ask("GET", manifest, token="another")),
        (413, publisher.ask("GET", manifest, body=b"x", headers={"Content-Length": "1"})),
        (501, publisher.ask("PATCH", manifest)),
        (431, publisher.ask("GET", manifest, headers={"Long": "x" * MAX_HEAD})),
    ]
    publisher.wait_until_idle()  # a connection that is still open would be closed in its stead
    monkeypatch.setattr(publisher.server.limits, "limits", Limits(0, 0, 0))
    cases.append((503, publisher.ask("GET", manifest)))
    for status, answer in cases:
        assert answer[0] == status, answer
        if status in (401, 404, 413, 416, 429):
            assert b'{"error": "' in answer[1]
    statuses = {int(status) for status in re.findall(r"\b[2-5]\d\d\b", section[1])} - {512}
    assert statuses == {status for status, _ in cases}
    # The desk is where receivers of direct transports ask, and tested with these.
    missing = [
        where
        for where in refusals.never_raised(ROOT / "libs/weights/src/astraflow_weights")
        if not re.search(r"/direct/", where)
    ]
    assert missing == []
