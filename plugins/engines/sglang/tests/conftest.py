"""Stand-ins for SGLang servers, see ``sglang_stand_in``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from astraflow_tiny_model.folder import write_tiny_model

sys.path.insert(0, str(Path(__file__).parent))

from sglang_stand_in import FLAGS, SGLangStandIn


@pytest.fixture
def serving() -> Iterator[Callable[..., SGLangStandIn]]:
    """``serving(model, flags)`` starts a stand-in, which ends with the test."""
    started: list[SGLangStandIn] = []

    def start(model: Path, flags: tuple[str, ...] = FLAGS) -> SGLangStandIn:
        stand_in = SGLangStandIn(model, flags=flags)
        stand_in.start()
        started.append(stand_in)
        return stand_in

    yield start
    for stand_in in started:
        stand_in.stop()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder that servers and engines start with."""
    return write_tiny_model(tmp_path / "model", hidden=32, init_std=0.3, context=512)


@pytest.fixture
def servers(serving: Callable[..., SGLangStandIn], model: Path) -> list[SGLangStandIn]:
    """Stand-ins for the servers of two replicas."""
    return [serving(model), serving(model)]
