"""A restart continues from an image and the entries after it, and from all entries whenever that cannot be."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import numpy as np
import pytest
from random_policies import DropEqual, HalfReplayed, OldestFirst, Picky

from astraflow_core.types import Verdict
from astraflow_runtime.dataflow.image import file as files
from astraflow_runtime.dataflow.image import keeper as keeping
from astraflow_runtime.dataflow.image.file import IMAGE, PARTIAL
from astraflow_runtime.dataflow.image.keeper import ImageKeeper
from astraflow_runtime.dataflow.image.restart import continued, written_by
from astraflow_runtime.dataflow.image.whole import save_state
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.journal.steplog import StepLog
from astraflow_runtime.dataflow.policies.remembering import attributes, remembers
from astraflow_wire.messages import RegisterTrainer, ReleaseBatches, SwapPolicy


class Killed(BaseException):
    """Ends the process."""


@pytest.fixture
def played(bench, config, tmp_path):
    """A run with tasks in the queue, leased and ended, rows buffered, served, kept and to be repeated."""
    b = bench(
        config(run__second_leases=1, checkpoint__every=2, eval__every=2, run__task_attempts=3),
        journal=tmp_path / "journal",
        admission=[Picky],
        data=[DropEqual, OldestFirst, HalfReplayed],
        evals={"held": 2},
        prompts=7,
    )
    b.begin("r0", "r1")
    for version in range(4):
        step(b, version)
    b.flow.training.release(ReleaseBatches(policy="solver", updates=2))
    tasks, _ = b.lease(4, "r0", 4)
    b.fail(tasks[0], raas="r0")
    return b


def step(b, version):
    for raas in ("r0", "r1"):
        for task in b.lease(6, raas, version)[0]:
            b.push(task, raas, version=version)
    batch = None
    for _ in range(9):
        batch = b.next_batch(version)
        if batch is not None:
            break
    assert batch is not None
    b.announce(version + 1)
    b.acknowledge(batch.id, version + 1)


def journal_of(b):
    return b.state.records._journal


def copy_of(b, tmp_path, name):
    """The folder of the journal as a kill leaves it now."""
    return shutil.copytree(b.journal, tmp_path / name)


@contextmanager
def restarted(b, folder, by="test"):
    """What continues from ``folder``, and the state of the run that was killed."""
    now = b.time[0]
    journal = Journal(folder, lambda: b.time[0])
    try:
        yield continued(b.build, journal, lambda at_s: b.time.__setitem__(0, at_s), by)
    finally:
        journal.close()
        b.time[0] = now


def test_a_restart_reads_only_the_entries_after_the_image(played, caplog):
    caplog.set_level(logging.INFO)
    played.write_image()
    covered = journal_of(played).count
    step(played, 4)
    played.restart()
    after = journal_of(played).count - covered
    message = f"restored from an image of {covered} entries and {after} entries after it"
    assert any(message in record.getMessage() for record in caplog.records)
    step(played, 5)
    played.check()
    played.write_image()
    played.restart()
    played.restart(resumed=True)
    played.check()


def repeats(b):
    b.flow.training.register(RegisterTrainer(policy="solver", pid=9, host="h", updates=(2,)))
    assert len(b.state.streams["solver"]._to_repeat) == 2


def leases_twice(b):
    task = b.state.train.leased()[0]
    b.state.lease_again(task, "r1", 64)
    assert list(b.state.train.twice) == [task.id]


def teaches_nothing(b):
    task = next(task for task in b.lease(4, "r1", 4)[0] if not task.pinned)
    b.push(task, "r1", rewards=(1.0, 1.0), version=4)
    assert b.state.streams["solver"].watch.fruitless == 1


@pytest.mark.parametrize("play", [repeats, leases_twice, teaches_nothing])
def test_an_image_has_what_is_rarely_there(played, play):
    play(played)
    played.write_image()
    played.restart()


def test_a_kill_at_any_step_of_writing_loses_nothing(played, tmp_path, monkeypatch):
    """Each call to the system is the last one once, among them one for each piece of the file."""
    size = played.write_image().stat().st_size
    covered = journal_of(played).count
    step(played, 4)
    whole, left, seen = save_state(played.flow)(), [0], []

    def fatal(call):
        def called(*given):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return call(*given)

        return called

    def piece(handle, content):
        return os.write(handle, content[: size // 9])

    fakes = {name: fatal(getattr(os, name)) for name in ("open", "fsync", "close", "replace")}
    monkeypatch.setattr(
        files, "os", SimpleNamespace(**{**vars(os), **fakes, "write": fatal(piece)})
    )
    monkeypatch.setattr(files, "flush_folder", fatal(files.flush_folder))
    for steps in range(40):
        left[0], done = steps, False
        keeper = ImageKeeper(played.flow, journal_of(played), "test", 0)
        with suppress(Killed):
            done = keeper.write_now()
        folder = copy_of(played, tmp_path, f"killed-{steps}")
        with restarted(played, folder) as found:
            seen.append(found.covered)
            assert found.covered + found.read == journal_of(played).count
            assert save_state(found.flow)() == whole
        if done:
            break
    assert done and steps >= 14
    assert seen == sorted(seen)
    assert set(seen) == {covered, journal_of(played).count}
    assert not (played.journal / PARTIAL).exists()


WAYS = ("empty", "cut in the head", "cut in the middle", "longer", "older format")


def damage(content, how):
    """One of :data:`WAYS`, or another bit in this byte."""
    if how == "empty":
        return b""
    if how == "cut in the head":
        return content[:11]
    if how == "cut in the middle":
        return content[: len(content) // 2]
    if how == "longer":
        return content + b"\0"
    if how == "older format":
        return content[:4] + (files.FORMAT - 1).to_bytes(4, "little") + content[8:]
    place = int(how) % len(content)
    return content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :]


@pytest.mark.parametrize(
    "how",
    [*WAYS, "0", "5", "9", "17", "400", "1000000007"],
)
def test_a_damaged_image_is_not_used(played, how, caplog):
    image = played.write_image()
    image.write_bytes(damage(image.read_bytes(), how))
    step(played, 4)
    whole = save_state(played.flow)()
    played.state.close()
    with restarted(played, played.journal) as found:
        assert (found.covered, found.read) == (0, journal_of(played).count)
        assert save_state(found.flow)() == whole
    (line,) = [r for r in caplog.records if r.levelno >= logging.WARNING and "image" in r.message]
    assert (
        "the image of the state is not used, and all entries of the journal are read"
        in line.message
    )
    assert str(image) in line.message


def test_nor_is_one_of_another_program_config_or_journal(played, tmp_path, config, caplog):
    older = copy_of(played, tmp_path, "older")
    step(played, 4)
    image = played.write_image()
    played.state.close()
    with restarted(played, played.journal, by="another") as found:
        assert found.covered == 0
    assert "was written by another version, or for another config" in caplog.text
    shutil.copy(image, older / IMAGE)
    with restarted(played, older) as found:
        assert found.covered == 0
    assert "belongs to another journal than" in caplog.text
    assert written_by(config()) != written_by(config(run__steps=11))
    (tmp_path / "plugins.json").write_text("[]")
    assert written_by(config(), tmp_path) != written_by(config())


def test_nor_is_one_whose_entries_it_cannot_apply(played, caplog):
    """Whatever an image contains, the restored state is that of the journal."""
    image = played.write_image()
    wrong = files.read_image(played.journal, "test")
    wrong.state.admission.position += 1
    step(played, 4)
    whole = save_state(played.flow)()
    played.state.close()
    files.write_image(image.parent, wrong)
    with restarted(played, played.journal) as found:
        assert found.covered == 0
        assert save_state(found.flow)() == whole
    assert "RunFailed: the journal cannot be replayed" in caplog.text


def test_lines_of_metrics_are_neither_lost_nor_repeated(bench, tmp_path, caplog):
    metrics = tmp_path / "metrics.jsonl"
    b = bench(journal=tmp_path / "journal", steps=StepLog(metrics)).begin("r0")
    b.update(0)
    b.write_image()
    b.update(1)
    b.state.close()
    made, journal = b.build, Journal(tmp_path / "journal", lambda: b.time[0])

    def make():
        flow = made()
        flow.state.records._steps = StepLog(metrics)
        return flow

    found = continued(make, journal, lambda at_s: b.time.__setitem__(0, at_s), "test")
    assert found.covered
    found.flow.state.records.begin(journal)
    found.flow.state.records.log({"step": 3})
    found.flow.state.close()
    lines = metrics.read_text().splitlines()
    assert [line.count('"step": ') for line in lines] == [1, 1, 1]

    metrics.write_text("")
    found = continued(make, journal, lambda at_s: b.time.__setitem__(0, at_s), "test")
    assert found.covered == 0
    assert metrics.read_text().count('"step": ') == 2
    assert "has fewer lines than the 1 that the image counts" in caplog.text


class Secretive:
    """Has state that is missing in its checkpoint."""

    def __init__(self):
        self.seen = {}

    def accept(self, group):
        self.seen[group.prompt.id] = True
        return Verdict(True)


class Counting(Secretive):
    def __init__(self):
        self.count = 0

    def accept(self, group):
        self.count += 1
        return Verdict(True)


class Slotted(Counting):
    __slots__ = ("count",)


@pytest.mark.parametrize("kind", [Secretive, Counting, Slotted])
def test_no_image_without_the_state_of_a_data_policy(bench, tmp_path, kind, caplog):
    b = bench(journal=tmp_path, data=[kind]).begin("r0")
    b.update(0)
    assert not ImageKeeper(b.flow, journal_of(b), "test", 0).write_now()
    assert not (tmp_path / IMAGE).exists()
    assert f"data policy '{kind.__name__}' has a state and no state_dict" in caplog.text


def test_nor_without_that_of_the_rule_of_the_pool(bench, tmp_path, caplog):
    b = bench(journal=tmp_path).begin("r0")
    b.state.balance.rule.seen = []
    assert not ImageKeeper(b.flow, journal_of(b), "test", 0).write_now()
    assert "data policy 'three_zones' has a state and no state_dict" in caplog.text


@pytest.mark.parametrize("kind", [DropEqual, OldestFirst, Picky])
def test_policies_that_may_be_left_out(kind):
    policy = kind()
    assert not remembers(policy, attributes(policy))


class Raising(Picky):
    def state_dict(self):
        raise ValueError("no")


class Foreign(Picky):
    def state_dict(self):
        return {"array": np.zeros(1)}


@pytest.mark.parametrize(("kind", "why"), [(Raising, "ValueError: no"), (Foreign, "TypeError")])
def test_a_data_policy_that_fails_to_tell_its_state_ends_no_run(bench, tmp_path, kind, why, caplog):
    b = bench(journal=tmp_path, admission=[kind]).begin("r0")
    b.update(0)
    keeper = ImageKeeper(b.flow, journal_of(b), "test", 0)
    assert not keeper.write_now()
    (line,) = [record.message for record in caplog.records]
    assert "no images of the state are written" in line and why in line
    b.update(1)


def test_images_are_written_at_intervals_on_a_thread(played, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    journal, threads = journal_of(played), []
    monkeypatch.setattr(keeping, "EVERY", 9)
    monkeypatch.setattr(keeping, "SHARE", 1e9)
    keeper = ImageKeeper(played.flow, journal, "test", journal.count - 8)
    keeper.look()
    keeper.close()
    assert keeper.last is None
    played.add()
    monkeypatch.setattr(
        keeping,
        "write_image",
        lambda *given: threads.append(threading.current_thread()) or files.write_image(*given),
    )
    keeper.look()
    keeper.close()
    assert [thread.name for thread in threads] == ["image"]
    assert keeper.last.size == (played.journal / IMAGE).stat().st_size
    keeper.look()
    keeper.close()
    assert len(threads) == 1
    for version in (4, 5):
        step(played, version)
    keeper.look()
    keeper.close()
    assert len(threads) == 2
    monkeypatch.setattr(keeping, "SHARE", 1e-9)
    for version in (6, 7):
        step(played, version)
    keeper.look()  # the third is the last for a long time
    keeper.close()
    step(played, 8)
    keeper.look()
    keeper.close()
    assert len(threads) == 3
    played.restart()


def test_no_image_of_a_run_that_ends(played, monkeypatch):
    monkeypatch.setattr(keeping, "EVERY", 1)
    keeper = ImageKeeper(played.flow, journal_of(played), "test", 0)
    played.state.stop("enough")
    keeper.look()
    keeper.close()
    assert keeper.last is None


def test_a_disk_that_does_not_take_it(played, monkeypatch, caplog):
    def full(handle, content):
        raise OSError(28, "No space left on device")

    image = played.write_image().read_bytes()
    step(played, 4)
    monkeypatch.setattr(files.os, "write", full)
    assert not ImageKeeper(played.flow, journal_of(played), "test", 0).write_now()
    monkeypatch.undo()
    assert "no image of the state was written (the journal has everything)" in caplog.text
    assert (played.journal / IMAGE).read_bytes() == image
    assert not (played.journal / PARTIAL).exists()
    played.restart()


class Limit(Picky):
    def __init__(self, most=1):
        super().__init__()
        self.most = most

    def state_dict(self):
        return super().state_dict() | {"most": self.most}


def swap(b, table, number):
    message = SwapPolicy(
        id=f"s{number}", place="prompts", name="Picky", author="ada", at=1.0, table=table
    )
    return b.flow.swapping.swap(message)


def test_a_swapped_data_policy_is_built_again_with_its_state(bench, config, tmp_path):
    def build(place, table, number):
        return Limit(number) if table.use == "Limit" else Picky()

    b = bench(
        config(prompts__data=[{"use": "Picky"}]),
        journal=tmp_path,
        admission=[Picky],
        build_policy=build,
    ).begin("r0")
    b.update(0)
    swap(b, {"use": "Limit"}, 1)
    swap(b, {"use": "Limit", "x": 2}, 2)
    b.update(1)
    b.write_image()
    b.update(2)
    b.restart()
    (policy,) = [named.component for named in b.state.admission.chain._policies]
    assert (type(policy), policy.most) == (Limit, 2)
    assert swap(b, {}, 3).table["use"] == "Limit"
    assert swap(b, {"use": "Limit", "x": 2}, 2).number == 2  # the answer to a repeated message
    b.update(3)
    b.restart()
