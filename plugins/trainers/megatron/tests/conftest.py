"""Puts the modules that the tests here share within reach, and what ``torch`` finds alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for megatron_cases


@pytest.fixture(scope="session")
def torch_alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See :func:`megatron_launch.write_reference`."""
    from megatron_launch import write_reference

    return write_reference(tmp_path_factory.mktemp("reference"))
