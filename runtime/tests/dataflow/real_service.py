"""A dataflow as a real process that can be killed and restarted, and short ways to call it."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import textwrap
import time
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_runtime.dataflow.main import serve
from astraflow_wire.batches import NoBatch, decode_batch
from astraflow_wire.http.client import SyncClient
from astraflow_wire.messages import (
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
PROCESSES = multiprocessing.get_context("forkserver")
"""Forks processes of one that has imported a dataflow, which takes longer than all that one is asked here."""
PROCESSES.set_forkserver_preload(["astraflow_runtime.dataflow.main", "pytest"])


def _serve(config, folder):
    with (folder / "log").open("ab") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    sys.path.insert(0, str(folder))
    sys.exit(serve(RunConfig.model_validate(json.loads(config)), folder / "run", TOKEN))


class RealDataflow:
    """``config`` is a :class:`RunConfig` whose parts :data:`PARTS` has; ``folder`` an empty folder."""

    def __init__(self, config, folder):
        self._config, self._folder = json.dumps(config.model_dump(mode="json")), Path(folder)
        self.incarnations = {}
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "my_parts.py").write_text(textwrap.dedent(PARTS))
        self.start()

    def start(self):
        """Start it, and wait until it answers."""
        self.process = PROCESSES.Process(target=_serve, args=(self._config, self._folder))
        self.process.start()
        file, until = self._folder / "run" / "dataflow.json", time.monotonic() + DEADLINE_S
        while not file.exists() or json.loads(file.read_text())["pid"] != self.process.pid:
            assert self.process.exitcode is None, (self._folder / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.01)
        self.client = SyncClient(json.loads(file.read_text())["url"], TOKEN)

    def kill(self):
        """``kill -9``."""
        self.client.close()
        self.process.kill()
        self.process.join()

    def restart(self):
        """``kill -9``, and restart it."""
        self.kill()
        self.start()

    def look(self, what):
        return self.client.get_json(f"/v1/{what}", deadline_s=DEADLINE_S)

    def _call(self, path, message, expected):
        return self.client.post(f"/v1/{path}", message, expected, deadline_s=DEADLINE_S)

    def register_raas(self, name):
        message = RegisterRaas(raas=name, pid=1, host="h", policies=["solver"], capacity=64)
        answer = self._call("raas/register", message, RaasRegistered)
        self.incarnations[name] = answer.incarnation
        return answer

    def register_trainer(self, *updates):
        message = RegisterTrainer(policy="solver", pid=2, host="h", updates=updates or (0,))
        answer = self._call("trainers/register", message, TrainerRegistered)
        self.incarnations["solver"] = answer.incarnation
        return answer

    def announce(self, version):
        message = AnnouncementMessage(
            policy="solver", version=version, transport="x", endpoints=["e"],
            digest=f"d{version}", size=1, incarnation=self.incarnations["solver"],
        )  # fmt: skip
        return self._call("versions", message, VersionAnnounced)

    def lease(self, raas, free, version):
        serving = {"solver": version}
        message = LeaseTasks(
            raas=raas, free=free, wait_s=0, serving=serving, seen=serving,
            incarnation=self.incarnations[raas],
        )  # fmt: skip
        return self._call("tasks/lease", message, TasksLeased).tasks

    def renew(self, raas, tasks, version):
        serving = {"solver": version}
        message = RenewLeases(
            raas=raas, tasks=list(tasks), serving=serving, seen=serving,
            incarnation=self.incarnations[raas],
        )  # fmt: skip
        return self._call("tasks/renew", message, LeasesRenewed).notices

    def push(self, body):
        return self.client.post_bytes("/v1/groups", body, GroupPushed, deadline_s=DEADLINE_S)

    def fail(self, raas, task):
        number = self.incarnations[raas]
        failed = FailTask(raas=raas, task=task, error="boom", incarnation=number)
        self._call("tasks/fail", failed, Done)

    def next_batch(self, version):
        """(bytes, batch), or (bytes, ``None``)."""
        number = self.incarnations["solver"]
        message = NextBatch(policy="solver", version=version, wait_s=0, incarnation=number)
        body = self.client.post_for_bytes("/v1/batches/next", message, deadline_s=DEADLINE_S)
        batch = decode_batch(body)
        return body, None if isinstance(batch, NoBatch) else batch

    def acknowledge(self, batch, version):
        message = AcknowledgeBatch(
            policy="solver", batch=batch, version=version, metrics={},
            incarnation=self.incarnations["solver"],
        )  # fmt: skip
        return self._call("batches/ack", message, BatchAcknowledged)

    def release(self, updates):
        number = self.incarnations["solver"]
        released = ReleaseBatches(policy="solver", updates=updates, incarnation=number)
        self._call("batches/release", released, Done)

    def close(self):
        """Leave nothing running."""
        if self.process.exitcode is None:
            self.kill()
