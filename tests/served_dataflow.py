"""A dataflow behind its real app, in this process, for tests of its endpoints and views."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from fastapi.testclient import TestClient
from workspace import ROOT

from astraflow_runtime.dataflow.http import service
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_wire import messages
from astraflow_wire.model_files.model_limits import ModelLimits

TOKEN = "of-this-run"
LIMIT = 1 << 20
"""Bytes of a body, here."""
LIMITS = {"solver": ModelLimits(vocabulary=1000, positions=8)}


def load(file: Path) -> ModuleType:
    """A module that is in no package."""
    spec = importlib.util.spec_from_file_location(f"loaded_{file.parent.name}_{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


flows = load(ROOT / "runtime" / "tests" / "dataflow" / "conftest.py")


class Served:
    """A dataflow with trainer and RaaS ``r0`` present, behind its real app."""

    def __init__(
        self, begun: bool = True, tables: Sequence[dict[str, Any]] = (), **parts: Any
    ) -> None:
        wakeups = Wakeups()
        config = flows.make_config(eval__every=1, prompts__data=tables, balance__every=1)
        self.bench = flows.make_bench(config, signals=wakeups, limits=LIMITS, **parts)
        if begun:
            self.bench.begin()
        with patch.object(service, "MAX_BODY_BYTES", LIMIT):
            packages = {"astraflow-core": "0.1.0"}
            app = DataflowService(self.bench.flow, wakeups, TOKEN, packages=packages).app
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.client = TestClient(app, raise_server_exceptions=False, headers=headers)

    def post(self, path: str, message: Any) -> Any:
        body = message
        if not isinstance(message, bytes):
            body = messages.encode(self.bench.stamped(message))
        return self.client.post(path, content=body)

    def filled(self) -> Served:
        """It has rows for a batch now."""
        for _ in range(4):
            self.bench.push(self.task())
        return self

    def task(self, raas: str = "r0") -> Any:
        """A training task that ``raas`` holds."""
        (task,), _ = self.bench.lease(2, raas)
        return task
