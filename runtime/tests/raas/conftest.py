"""A run with fake components."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.config.models import RunConfig
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_tiny_model.folder import write_tiny_model

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)


@pytest.fixture(autouse=True)
def _fake_parts_importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def model(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), context=64)


@pytest.fixture
def make_config(model):
    def make(policies=("solver",), engine=None, transport=None, **tables: Any) -> RunConfig:
        engine = {"use": "fake_parts:FakeEngine", **(engine or {})}
        transport = {"use": "fake_parts:FakeTransport", **(transport or {})}
        policy = {
            "model": str(model),
            "trainer": {"use": "fake_parts:Unused"},
            "algorithm": {"use": "fake_parts:Unused"},
            "engine": engine,
            "transport": transport,
            "batch_sequences": 8,
        }
        raw = {
            "run": {
                "steps": 1,
                "max_staleness": 1,
                "group_size": 4,
                "start_deadline_s": 20,
                "deadline_s": 5,
            },
            "prompts": {"use": "fake_parts:Unused"},
            "workflow": {"use": "fake_parts:SingleTurn"},
            "reward": {"use": "fake_parts:Length"},
            "policies": dict.fromkeys(policies, policy),
            "plugins": {"only": ["three_zones"]},
        }
        for name, table in tables.items():
            raw[name] = {**raw.get(name, {}), **table} if table is not None else None
        return RunConfig.model_validate({k: v for k, v in raw.items() if v is not None})

    return make


@pytest.fixture
def raas_process(tmp_path):
    from raas_run import RaasProcess

    return lambda config, url: RaasProcess(config, tmp_path, url)


@pytest.fixture
def handle(model):
    """A policy over an engine in this process."""
    from local_engine import LocalEngine, replicas_of

    return PolicyHandle(replicas_of(LocalEngine()), FolderTokenizer(model))
