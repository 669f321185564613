"""Transport ``zmq`` keeps what every transport promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from astraflow_core.protocols.transport import Publisher
from astraflow_testing.conformance.transport import (
    EncryptedLink,
    ShapedLink,
    TransportConformance,
)


class TestZmq(TransportConformance):
    @pytest.fixture
    def table(self) -> dict[str, Any]:
        return {"use": "zmq"}

    @pytest.fixture
    def link(self) -> Iterator[Callable[[Publisher], ShapedLink]]:
        with ExitStack() as stack:
            yield lambda publisher: stack.enter_context(closing(EncryptedLink(publisher.endpoints)))
