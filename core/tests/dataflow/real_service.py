"""A dataflow as a real process that can be killed and started anew, and short ways to call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from astraflow_core.wire.batches import NoBatch, decode_batch
from astraflow_core.wire.client import SyncClient
from astraflow_core.wire.messages import (
    AcknowledgeBatch,
    AnnouncementMessage,
    BatchAcknowledged,
    Done,
    FailTask,
    GroupPushed,
    LeasesRenewed,
    LeaseTasks,
    NextBatch,
    RaasRegistered,
    RegisterRaas,
    RegisterTrainer,
    ReleaseBatches,
    RenewLeases,
    TasksLeased,
    TrainerRegistered,
    VersionAnnounced,
)

TOKEN = "secret"
DEADLINE_S = 30.0
PARTS = """
from astraflow_core.types import Prompt, Verdict
import numpy as np

class Prompts:
    def __init__(self, config, context):
        self.context = context
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return Prompt(str(index), {"prompt": str(index)})

class Picky:
    '''Decides by its own random numbers and by what it has seen.'''
    def __init__(self, config, context):
        self.random, self.seen = np.random.default_rng(context.seed), {}
    def admit(self, prompt):
        return self.random.random() < 1 / (1 + self.seen.get(prompt.id, 0))
    def accept(self, group):
        self.seen[group.prompt.id] = self.seen.get(group.prompt.id, 0) + 1
        return Verdict(self.random.random() < 0.8, "picky")
    def key(self, row):
        return row.reward
    def draw(self, count, fresh, kept, version):
        old = list(kept)[: count // 4]
        need = count - len(old)
        if len(fresh) < need:
            return None
        order = self.random.permutation(len(fresh))[:need]
        return [*(fresh[i] for i in order), *old]
"""
PROGRAM = """
import json, sys
from pathlib import Path
from astraflow_core.config.models import RunConfig
from astraflow_core.dataflow.main import serve
config = RunConfig.model_validate(json.loads(sys.argv[1]))
sys.exit(serve(config, Path(sys.argv[2]), "secret"))
"""


class RealDataflow:
    """``config`` is a :class:`RunConfig` whose parts :data:`PARTS` has; ``folder`` an empty folder."""

    def __init__(self, config, folder):
        self._config, self._folder = json.dumps(config.model_dump(mode="json")), Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "my_parts.py").write_text(textwrap.dedent(PARTS))
        self.start()

    def start(self):
        """Start it, and wait until it answers."""
        path = [str(self._folder), os.environ.get("PYTHONPATH")]
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, self._config, str(self._folder / "run")],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
                stderr=log,
            )
        file, until = self._folder / "run" / "dataflow.json", time.monotonic() + DEADLINE_S
        while not file.exists() or json.loads(file.read_text())["pid"] != self.process.pid:
            assert self.process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.01)
        self.client = SyncClient(json.loads(file.read_text())["url"], TOKEN)

    def kill(self):
        """``kill -9``."""
        self.client.close()
        self.process.kill()
        self.process.wait()

    def restart(self):
        """``kill -9``, and start it anew."""
        self.kill()
        self.start()

    def look(self, what):
        return self.client.get_json(f"/v1/{what}", deadline_s=DEADLINE_S)

    def _call(self, path, message, expected):
        return self.client.post(f"/v1/{path}", message, expected, deadline_s=DEADLINE_S)

    def register_raas(self, name):
        message = RegisterRaas(raas=name, pid=1, host="h", policies=["solver"], capacity=64)
        return self._call("raas/register", message, RaasRegistered)

    def register_trainer(self, *updates):
        message = RegisterTrainer(policy="solver", pid=2, host="h", updates=updates or (0,))
        return self._call("trainers/register", message, TrainerRegistered)

    def announce(self, version):
        message = AnnouncementMessage(
            policy="solver", version=version, transport="x", endpoints=["e"],
            digest=f"d{version}", size=1,
        )  # fmt: skip
        return self._call("versions", message, VersionAnnounced)

    def lease(self, raas, free, version):
        serving = {"solver": version}
        message = LeaseTasks(raas=raas, free=free, wait_s=0, serving=serving, seen=serving)
        return self._call("tasks/lease", message, TasksLeased).tasks

    def renew(self, raas, tasks, version):
        serving = {"solver": version}
        message = RenewLeases(raas=raas, tasks=list(tasks), serving=serving, seen=serving)
        return self._call("tasks/renew", message, LeasesRenewed).news

    def push(self, body):
        return self.client.post_bytes("/v1/groups", body, GroupPushed, deadline_s=DEADLINE_S)

    def fail(self, raas, task):
        self._call("tasks/fail", FailTask(raas=raas, task=task, error="boom"), Done)

    def next_batch(self, version):
        """(bytes, batch), or (bytes, ``None``)."""
        message = NextBatch(policy="solver", version=version, wait_s=0)
        body = self.client.post_for_bytes("/v1/batches/next", message, deadline_s=DEADLINE_S)
        batch = decode_batch(body)
        return body, None if isinstance(batch, NoBatch) else batch

    def acknowledge(self, batch, version):
        message = AcknowledgeBatch(policy="solver", batch=batch, version=version, metrics={})
        return self._call("batches/ack", message, BatchAcknowledged)

    def release(self, updates):
        self._call("batches/release", ReleaseBatches(policy="solver", updates=updates), Done)

    def close(self):
        """Leave nothing running."""
        if self.process.poll() is None:
            self.kill()
