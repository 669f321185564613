"""Whole runs with two ranks that publish their own blocks and die while they serve and while they publish."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from safetensors import deserialize

from astraflow_testing.runs import User

pytest.importorskip("torch", reason="ranks are started by torchrun")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.slow,
    pytest.mark.usefixtures("heavy_imports"),  # those of torchrun
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]

BLOCK = 2 << 20
PARTS = '''
"""Trainers whose ranks publish their own blocks and kill themselves, each once, as DEATHS says; and an engine that
keeps what it is given. Torch is imported where a trainer is made, not wherever this is looked at."""
import hashlib
import json
import os
import shutil
import signal
import threading
from pathlib import Path

import numpy as np

from astraflow_testing.table import TableEngine, TableTrainer
from astraflow_core.types import TensorSlice
from astraflow_weights.block_range import BlockRange
from astraflow_plugin_fsdp.config import FsdpConfig


class Witness(TableEngine):
    """Samples uniformly, whatever it is given, and keeps every file."""

    def __init__(self, config, context):
        super().__init__(config, context)
        self.kept = Path(context.run.directory) / "kept"

    async def load_weights(self, source):
        self.kept.mkdir(exist_ok=True)
        number = len(list(self.kept.iterdir()))
        shutil.copy(source.path, self.kept / f"{number:03}-{source.version}-{source.digest}")
        self._version = source.version
        self._refuse_other_versions()


class Dying:
    """Before a trainer. DEATHS: rank, in the middle of what, after how many steps of its process at least."""

    def __init__(self, config, context):
        super().__init__(config, context)
        self.rank, self.size = context.ranks.rank, context.ranks.size
        self.notes, self.made = Path(context.run.directory), 0
        self.deaths = json.loads((self.notes.parents[1] / "deaths.json").read_text())
        read = BlockRange.__getitem__

        def reading(part, wanted):
            if "process_request" in threading.current_thread().name:
                self.at("serve")
            return read(part, wanted)

        BlockRange.__getitem__ = reading

    def at(self, phase):
        for number, (rank, where, steps) in enumerate(self.deaths):
            died = self.notes / f"died-{number}"
            if died.exists():
                continue
            if (rank, where) == (self.rank, phase) and self.made >= steps:
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return

    def step(self, batch, algorithm, step):
        metrics = super().step(batch, algorithm, step)
        self.made += 1
        return metrics

    def export_shards(self):
        said = []
        for part in super().export_shards():
            data = np.ascontiguousarray(part.data).tobytes()
            said.append([part.name, part.start, len(data), hashlib.sha256(data).hexdigest()])
            yield part
            self.at("export")
        with (self.notes / f"exported-{self.rank}.jsonl").open("a") as file:
            file.write(json.dumps(said) + "\\n")


class Fsdp:
    Config = FsdpConfig
    capabilities = frozenset(
        {"entropy", "checkpoint", "async_save", "reshard", "multi_rank", "sharded_export"}
    )

    def __new__(cls, config, context):
        from astraflow_plugin_fsdp.trainer import FsdpTrainer

        return type("DyingFsdp", (Dying, FsdpTrainer), {})(config, context)


class Ballast(TableTrainer):
    """A table with eight megabytes beside it that change with it; the ranks take turns row by row."""

    publish = "sharded"

    def export_shards(self):
        table = self._logits.astype(np.float32)
        ballast = np.tile(table.ravel(), (2 << 20) // table.size + 1)[: 2 << 20].reshape(8, -1)
        for name, whole in (("logits", table), ("ballast", ballast)):
            for row in range(self.rank, len(whole), self.size):
                yield TensorSlice(name, "F32", whole.shape, row * whole.shape[1], whole[row])


class Table(Dying, Ballast):
    capabilities = TableTrainer.capabilities | {"sharded_export"}
'''
FSDP = (
    "policies.solver.model=tiny:qwen3?hidden=256&layers=2&heads=1&kv_heads=1",
    "policies.solver.algorithm.use=grpo",
    "policies.solver.trainer.use=sharded:Fsdp",
    "policies.solver.trainer.publish=sharded",
    "policies.solver.trainer.publish_dtype=float32",
)
CASES = {
    "fsdp": ("http", [(1, "serve", 1)], FSDP),
    "table": (
        "delta",
        [(1, "export", 1)],
        ("policies.solver.trainer.use=sharded:Table",),
    ),
}
"""Transport, deaths and keys of a run. Each death costs the start of all ranks, so there is one in each."""


@pytest.mark.parametrize("name", CASES)
def test_ranks_die_while_they_serve_and_while_they_publish(user: User, name: str) -> None:
    pytest.importorskip("astraflow_plugin_fsdp.config")
    transport, deaths, keys = CASES[name]
    user.write("sharded.py", PARTS)
    user.write("deaths.json", json.dumps(deaths))
    steps = 3 + 2 * len(deaths)
    ended = user.run_table(
        f"run.steps={steps}",
        "run.deadline_s=120",
        "checkpoint.every=2",
        "launcher.restarts=5",
        "policies.solver.engine.use=sharded:Witness",
        f"policies.solver.transport.use={transport}",
        "policies.solver.trainer.ranks=2",
        *keys,
        deadline_s=400,
    )
    assert ended.exit_code == 0, ended.text + user.last_words()
    directory = ended.run_directory
    assert len(list(directory.glob("died-*"))) == len(deaths)
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    made = [line for line in lines if "step" in line]
    assert [line["step"] for line in made if not line["again"]] == list(range(1, steps + 1))
    versions = [line["version"] for line in made]
    assert versions == sorted(set(versions))
    assert ended.summary["lost"] == 0
    kept = sorted((directory / "kept").iterdir())
    given = [int(path.name.split("-")[1]) for path in kept]
    assert given == sorted(set(given)) and len(given) >= len(deaths) + 1
    exported = [said_by(directory, rank) for rank in (0, 1)]
    for path in kept:
        whole_and_exported(path, exported)
    assert user.left_running() == []


def said_by(directory: Path, rank: int) -> list[Any]:
    """What the rank exported: name, first element, bytes and digest of each slice, per export."""
    lines = (directory / f"exported-{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def whole_and_exported(path: Path, exported: list[list[Any]]) -> None:
    """The file is the version that was announced, and each rank exported its part of it at once."""
    data = path.read_bytes()
    assert len(data) > 3 * BLOCK, "each rank is to serve blocks"
    digests = [xxhash.xxh3_128_digest(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
    assert xxhash.xxh3_128_hexdigest(b"".join(digests)) == path.name.split("-")[2]
    tensors = {name: bytes(entry["data"]) for name, entry in deserialize(data)}
    covered = dict.fromkeys(tensors, 0)
    for exports in exported:
        mine = next((said for said in exports if all(holds(tensors, *each) for each in said)), None)
        assert mine is not None, f"{path.name} has bytes that a rank never exported"
        for name, _, size, _ in mine:
            covered[name] += size
    assert covered == {name: len(held) for name, held in tensors.items()}


def holds(tensors: dict[str, bytes], name: str, start: int, size: int, digest: str) -> bool:
    width = np.dtype("<f4").itemsize
    held = tensors[name][start * width : start * width + size]
    return hashlib.sha256(held).hexdigest() == digest
