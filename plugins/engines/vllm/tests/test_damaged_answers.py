"""Whatever a server says of itself is understood or an error of ours."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from astraflow_core.errors import WireError
from astraflow_plugin_vllm.backend import context_length, version_of
from astraflow_plugin_vllm.metrics import metrics
from astraflow_serving.differences import what_differs
from astraflow_serving.http import ServerClient
from astraflow_testing.damage import assert_refused_or_read, damaged


class Saying:
    """The client of a server that gives one answer to everything."""

    url = "http://server"

    def __init__(self, answer: bytes) -> None:
        self.answer = answer

    async def get(self, path: str) -> bytes:
        return self.answer


def asked(ask: Callable[[ServerClient], Awaitable[Any]], answer: bytes) -> Any:
    async def play() -> Any:
        return await ask(cast(ServerClient, Saying(answer)))

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("ask", "sound"),
    [
        (version_of, {"version": "0.32.0"}),
        (context_length, {"data": [{"id": "m", "max_model_len": 64}]}),
    ],
)
def test_what_a_server_says_of_itself_is_read_or_refused(ask: Any, sound: Any) -> None:
    answer = json.dumps(sound).encode()
    assert asked(ask, answer) in ("0.32.0", 64)
    messages = damaged([answer], "json", count=200)
    assert_refused_or_read(lambda given: asked(ask, given), messages, WireError)


def test_adapters_over_the_model_have_no_length() -> None:
    models = [{"id": "m", "max_model_len": 64}, {"id": "adapter", "max_model_len": None}]
    assert asked(context_length, json.dumps({"data": models}).encode()) == 64
    with pytest.raises(WireError, match="the first model has no max_model_len"):
        asked(context_length, json.dumps({"data": models[1:]}).encode())


def test_a_page_of_another_server_is_named_with_its_address() -> None:
    with pytest.raises(WireError, match=r"http://server/version: JSON is malformed"):
        asked(version_of, b"<html>not found</html>")


def test_routes_that_no_one_describes_are_unknown() -> None:
    for answer in (b"[]", b"\xff", b'{"paths": null}', b"[" * 100_000):
        told = asked(lambda client: what_differs(client, ["/a"]), answer)
        assert told.startswith("it does not list its routes"), answer[:20]
    assert asked(lambda client: what_differs(client, ["/a"]), b'{"paths": {}}') == "it has no /a"


def test_measurements_are_finite_numbers() -> None:
    lines = (
        b"# HELP vllm:x what\nvllm:x{a=\"1\"} 2.0\nvllm:x{a=\"2\"} 3e0\nvllm:bad NaN\nvllm:worse +Inf\n"
        b"vllm:odd 1.2.3\nvllm:huge 1e999\nother:x 7\n"
    )  # fmt: skip
    assert asked(metrics, lines) == {"x": 5.0}
