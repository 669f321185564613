"""Runs whose trainer loses its state: it continues with the weights of a version that others still have."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from astraflow_core.errors import Refused
from astraflow_core.protocols.transport import Publisher
from astraflow_core.types import Announcement, ExportedTensor, Manifest
from astraflow_runtime.dataflow.journal.entries import Announced, TrainerRegistration
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_runtime.raas.engines.offering import _publish
from astraflow_runtime.trainer.recovery import Recovery
from astraflow_testing.conformance._models.trainer_rig import PolicyGradient, ragged_batch, ready
from astraflow_testing.conformance.subject import context, installed
from astraflow_testing.runs import TABLE_RUN, EndedCommand, User, live_commands
from astraflow_tiny_model.folder import write_tiny_model
from astraflow_wire.http.recovery import RecoverableVersions
from astraflow_wire.messages import AnnouncementMessage

pytestmark = [
    pytest.mark.timeout(150),
    pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc"),
]
STEPS = 30
SLOWLY = f"run.steps={STEPS}", "policies.solver.trainer.step_s=0.1"


def kill_trainer(user: User) -> None:
    """As the kernel does it."""
    for pid, line in live_commands(user.marker).items():
        if "trainer" in line:
            os.kill(pid, signal.SIGKILL)
            return
    raise AssertionError("there is no trainer")


def announced_digests(directory: Path) -> tuple[dict[int, str], list[str]]:
    """Version -> digest of its weights, as the journal has them, and that of the first version after each registration
    with recovered weights."""
    digests, first, recovering = {}, [], False
    for _, entry in JournalReader(directory / "journal").entries():
        if isinstance(entry, TrainerRegistration):
            recovering = entry.message.recovered >= 0
        elif isinstance(entry, Announced):
            digests[entry.message.version] = entry.message.digest
            first += [entry.message.digest] if recovering else []
            recovering = False
    return digests, first


def check(
    ended: EndedCommand, recoveries: int, restarts: int | None = None
) -> list[dict[str, Any]]:
    """The run finished, every update was made in its turn, and all adds up; returns the recoveries. ``restarts``: those
    by the launcher, as many if not given."""
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == STEPS
    assert ended.summary["lost"] == ended.summary["duplicated"] == 0
    status = json.loads((ended.run_directory / "status.json").read_text())
    assert status["invariants_ok"]
    entries = [
        json.loads(line)
        for line in (ended.run_directory / "metrics.jsonl").read_text().splitlines()
    ]
    made = [line for line in entries if "step" in line]
    assert [line["step"] for line in made if not line["again"]] == list(range(1, STEPS + 1))
    versions = [line["version"] for line in made]
    assert versions == sorted(versions)
    assert max(line["staleness_max"] for line in made) <= ended.summary["max_staleness_allowed"]
    noted: list[dict[str, Any]] = [line["recovery"] for line in entries if "recovery" in line]
    assert noted == ended.summary["recoveries"]
    assert len(noted) == recoveries
    assert ended.summary["restarts"] == (recoveries if restarts is None else restarts)
    digests, first = announced_digests(ended.run_directory)
    assert [digests[recovery["version"]] for recovery in noted] == first
    return noted


@pytest.mark.slow
def test_a_trainer_whose_checkpoints_are_gone_or_damaged_repeats_what_its_weights_lack(
    user: User,
) -> None:
    process = user.start(*user.table_arguments(*SLOWLY, "checkpoint.every=4"))
    directory = user.wait_for_steps(10)
    saved = directory / "checkpoints" / "solver"
    kill_trainer(user)
    shutil.rmtree(saved)
    user.wait_for(lambda: '"recovery"' in (directory / "metrics.jsonl").read_text())
    user.wait_for_steps(22)
    user.wait_for(lambda: len(list(saved.glob("update-*"))) >= 2)
    kill_trainer(user)
    for folder in saved.glob("update-*"):
        for file in folder.glob("*.safetensors"):
            file.write_bytes(file.read_bytes()[:-1])
    recoveries = check(user.end(process, 90), 2)
    for recovery in recoveries:
        assert recovery["lost"] == recovery["optimizer"] == 0


@pytest.mark.slow
def test_a_trainer_without_checkpoints_continues_with_a_version(user: User) -> None:
    store = f'{{ use = "disk", url = "{user.directory}/store" }}'
    config = TABLE_RUN.replace('{ use = "http" }', store)
    process = user.start(*user.table_arguments(*SLOWLY, config=config))
    directory = user.wait_for_steps(8)
    kill_trainer(user)
    ended = user.end(process, 90)
    (recovery,) = check(ended, 1)
    assert recovery["again"] == recovery["optimizer"] == 0
    said = f"had lost its state: it continues with the weights of version {recovery['version']}"
    assert said in ended.text
    log = (directory / "logs" / "trainer-solver.log").read_text()
    assert f"with the weights of version {recovery['version']}" in log


TWO_RANKS = "policies.solver.trainer.ranks=2", "run.deadline_s=30"


def ranks_of_trainer(user: User) -> tuple[list[int], list[int]]:
    """The processes of rank 1, and those of all ranks with torchrun, which started them."""
    ones, every = [], []
    for pid, line in live_commands(user.marker).items():
        if "trainer" in line:
            every.append(pid)
            ones += [pid] if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes() else []
    return ones, every


def recovered(directory: Path) -> int:
    """How often the log of the run reports that its trainer got weights from the pool."""
    return (directory / "metrics.jsonl").read_text().count('"recovery"')


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_ranks_without_checkpoints_continue_with_a_version(user: User) -> None:
    pytest.importorskip("torch", reason="ranks are started by torchrun")
    process = user.start(*user.table_arguments(*SLOWLY, *TWO_RANKS))
    directory = user.wait_for_steps(6)
    (one,), _ = ranks_of_trainer(user)
    os.kill(one, signal.SIGKILL)  # torchrun starts both again
    user.wait_for(lambda: recovered(directory) == 1, 60)
    user.wait_for_steps(14)
    _, every = ranks_of_trainer(user)
    assert len(every) == 3
    for pid in every:
        os.kill(pid, signal.SIGKILL)
    noted = check(user.end(process, 120), 2, restarts=1)
    assert [each["again"] for each in noted] == [each["optimizer"] for each in noted] == [0, 0]


LORA = (
    TABLE_RUN.replace(
        "hidden=8&layers=1&heads=1&kv_heads=1", "hidden=16&layers=1&heads=2&kv_heads=1"
    )
    .replace('"astraflow_testing.table:TableEngine"', '"torch"')
    .replace('"astraflow_testing.table:TableAlgorithm"', '"grpo"')
    .replace(
        '"astraflow_testing.table:TableTrainer"',
        '"TRAINER", lora_rank = 2, lr = 1e-2, publish_dtype = "float32"',
    )
)


def damaged_but_the_oldest(saved: Path) -> int:
    """Of the checkpoints in a folder; returns the updates of the one that is left."""
    left, *others = sorted(saved.glob("update-*"))
    assert len(others) >= 2, "batches since the last but one are kept, and would be repeated"
    for folder in others:
        for file in folder.rglob("*"):
            if file.is_file():
                file.write_bytes(file.read_bytes()[:-1])
    return int(left.name.rpartition("-")[2])


def recovers_adapters(user: User, trainer: str, *overrides: str) -> None:
    """A run with a LoRA trainer that is killed and whose newer checkpoints are damaged: it has the adapter that a RaaS
    holds and the optimizer of the oldest."""
    keys = f"run.steps={STEPS}", "run.deadline_s=60", "checkpoint.every=2", "checkpoint.keep=3"
    arguments = user.table_arguments(*keys, *overrides, config=LORA.replace("TRAINER", trainer))
    process = user.start(*arguments)
    saved = user.wait_for_steps(8, 120) / "checkpoints" / "solver"
    user.wait_for(lambda: len(list(saved.glob("update-*/checkpoint.json"))) >= 3)
    for pid in ranks_of_trainer(user)[1]:
        os.kill(pid, signal.SIGKILL)
    left = damaged_but_the_oldest(saved)
    ended = user.end(process, 240)
    (recovery,) = check(ended, 1)
    assert recovery["optimizer"] == left > 0
    assert recovery["of_update"] > left
    log = (ended.run_directory / "logs" / "trainer-solver.log").read_text()
    assert f"the state of the optimizer is that after update {left}" in log


ABOUT = (
    "runtime/src/astraflow_runtime/trainer/*.py",
    "runtime/src/astraflow_runtime/trainer/checkpoints/**/*.py",
    "runtime/src/astraflow_runtime/raas/engines/offering.py",
    "libs/torch_training/src/**/*.py",
)
"""What tests of adapters are about, beside their trainer."""


@pytest.mark.turns(*ABOUT, "plugins/trainers/torch/src/**/*.py")
@pytest.mark.slow
@pytest.mark.backend
@pytest.mark.timeout(400)
def test_an_adapter_is_recovered_and_the_optimizer_is_of_an_older_checkpoint(user: User) -> None:
    pytest.importorskip("astraflow_plugin_torch_trainer.trainer")
    recovers_adapters(user, "torch")


@pytest.mark.turns(*ABOUT, "plugins/trainers/fsdp/src/**/*.py")
@pytest.mark.slow
@pytest.mark.backend
@pytest.mark.timeout(400)
def test_two_sharded_ranks_recover_an_adapter(user: User) -> None:
    pytest.importorskip("astraflow_plugin_fsdp.trainer")
    recovers_adapters(user, "fsdp", "policies.solver.trainer.ranks=2")


@pytest.mark.slow
def test_a_run_that_is_not_to_recover_fails_as_it_did(user: User) -> None:
    process = user.start(*user.table_arguments(*SLOWLY, "checkpoint.recover=false"))
    user.wait_for_steps(2)
    kill_trainer(user)
    ended = user.end(process, 60)
    assert ended.exit_code == 1
    assert "trainer-solver was killed by SIGKILL while the run continued" in ended.text


KEYS: dict[str, dict[str, Any]] = {
    "http": {},
    "disk": {"url": "STORE"},
    "zmq": {},
    "delta": {"kernel": "numpy"},
    "shm": {"directory": "STORE"},
}


def built(kind: str, name: str, keys: dict[str, Any], role: str, directory: Path) -> Any:
    """A component as a process of ``role`` has it."""
    (factory,) = installed(kind, name, keys).variants.values()
    (directory / "state").mkdir(parents=True, exist_ok=True)
    return factory(context(role, directory))


@pytest.fixture
def store() -> Iterator[Path]:
    """A folder for versions, with a short path, since notifications of shared memory use a socket in it."""
    with tempfile.TemporaryDirectory(prefix="w-") as folder:
        yield Path(folder)


class Told:
    """The dataflow of a trainer that asks which RaaS have a version."""

    def __init__(self, offered: Announcement) -> None:
        self.version = AnnouncementMessage(
            policy=offered.policy,
            version=offered.version,
            transport=offered.transport,
            endpoints=list(offered.endpoints),
            digest=offered.digest,
            size=offered.size,
        )

    def recover(self, wait_s: float) -> RecoverableVersions:
        return RecoverableVersions(offered=[self.version], problems=["raas-1: no file"])


def announced(publisher: Publisher, manifest: Manifest, transport: str) -> Announcement:
    return Announcement(
        "solver", manifest.version, transport, publisher.endpoints, manifest.digest, manifest.size
    )


def passed_on(
    transport: str,
    store: Path,
    tensors: list[ExportedTensor],
    then: Callable[[Recovery], None],
    kind: str = "full",
    trained: str = "",
) -> None:
    """``tensors`` are published as version 3 and reach a RaaS; their publisher ends, the RaaS offers what it has,
    and ``then`` gets what a trainer of ``trained`` weights (those of ``kind``) recovers by."""
    keys = {k: str(store) if v == "STORE" else v for k, v in KEYS[transport].items()}
    sides = [
        built("transport", transport, keys, role, store / role) for role in ("trainer", "raas")
    ]
    publisher, receiver = sides[0].publisher(), sides[1].receiver()
    based = {"base": "b" * 32} if kind == "adapter" else {}
    manifest = publisher.publish(3, iter(tensors), None, **based)
    source = receiver.fetch(announced(publisher, manifest, transport), 20.0)
    publisher.close()
    again, offered = _publish(sides[1], source)
    try:
        assert offered.digest == manifest.digest
        told: Any = Told(announced(again, offered, transport))
        model = store / "model"
        model.mkdir(exist_ok=True)
        if not (model / "config.json").exists():
            (model / "config.json").write_text("{}")
        (store / "mine").mkdir(exist_ok=True)
        mine = built("transport", transport, keys, "trainer", store / "trainer-again")
        then(Recovery(told, mine, model, store / "mine", 20.0, "", trained or kind))
        assert not list((store / "mine").iterdir())
    finally:
        again.close()
        receiver.close()


@pytest.mark.parametrize("transport", KEYS)
def test_what_a_raas_has_is_offered_under_the_announced_digest(store: Path, transport: str) -> None:
    rng = np.random.default_rng(1)
    arrays = {f"w{n}": rng.normal(size=(3, 5 + n)).astype(np.float32) for n in range(3)}
    tensors = [ExportedTensor(name, "F32", a.shape, a) for name, a in arrays.items()]

    def same(recovery: Recovery) -> None:
        with recovery.found(Refused(409, "no state")) as recovered:
            found = load_file(recovered.folder / "model.safetensors")
            assert recovered.version == 3
            assert (recovered.folder / "config.json").is_file()
        assert found.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)

    passed_on(transport, store, tensors, same)


def test_what_cannot_be_recovered_is_refused_with_the_reasons(store: Path) -> None:
    gone = Announcement("solver", 3, "disk", (str(store / "nothing"),), "0" * 32, 10)
    transport = built("transport", "disk", {"url": str(store)}, "trainer", store)
    told: Any = Told(gone)
    recovery = Recovery(told, transport, store, store, 0.3)
    with (
        pytest.raises(Refused, match=r"no state\. Its weights .*raas-1: no file; version 3 of"),
        recovery.found(Refused(409, "no state")),
    ):
        pass
    unable = Recovery(told, transport, store, store, 0.3, "It lacks the capability adopt")
    with (
        pytest.raises(Refused, match=r"^no state\. It lacks the capability adopt$"),
        unable.found(Refused(409, "no state")),
    ):
        pass


def test_an_adapter_stands_beside_the_weights_of_its_model(store: Path) -> None:
    matrix = np.arange(6, dtype=np.float32).reshape(2, 3)
    name = "base_model.model.layer.lora_A.weight"
    tensors = [ExportedTensor(name, "F32", matrix.shape, matrix)]
    (store / "model").mkdir()
    (store / "model" / "model.safetensors").write_bytes(b"as it was")

    def beside(recovery: Recovery) -> None:
        with recovery.found(Refused(409, "no state")) as recovered:
            found = load_file(recovered.folder / "adapter_model.safetensors")
            np.testing.assert_array_equal(found[name], matrix)
            assert (recovered.folder / "model.safetensors").read_bytes() == b"as it was"

    passed_on("http", store, tensors, beside, "adapter")

    def refused(recovery: Recovery) -> None:
        wrong = "has kind 'adapter', and its trainer publishes 'full'"
        with pytest.raises(Refused, match=wrong), recovery.found(Refused(409, "no state")):
            pass

    passed_on("http", store, tensors, refused, "adapter", "full")


@pytest.mark.slow
def test_a_torch_trainer_continues_with_the_announced_weights_to_the_bit(store: Path) -> None:
    write_tiny_model(store / "model", hidden=32, init_std=0.2)
    keys = {"device": "cpu", "publish_dtype": "float32", "lr": 1e-2}
    trainers = [built("trainer", "torch", keys, "trainer", store) for _ in range(2)]
    for trainer in trainers:
        trainer.setup(store / "model", 10, frozenset())
    batch, algorithm = ragged_batch(0), PolicyGradient()
    trainers[0].step(ready(trainers[0], batch, algorithm), algorithm, 0)
    version = [
        ExportedTensor(each.name, each.dtype, each.shape, bytes(each.data))
        for each in trainers[0].export()
    ]
    before = [bytes(each.data) for each in trainers[1].export()]
    assert before != [each.data for each in version]

    def adopt(recovery: Recovery) -> None:
        with recovery.found(Refused(409, "no state")) as recovered:
            trainers[1].adopt(recovered.folder, 1)

    passed_on("http", store, version, adopt)
    assert [bytes(each.data) for each in trainers[1].export()] == [each.data for each in version]
    assert trainers[1].step(ready(trainers[1], batch, algorithm), algorithm, 1)["grad_norm"] > 0
