"""Callers while the disk of the journal is full: they get no reply that a killed dataflow would forget."""

from __future__ import annotations

import json
import os
from functools import partial

import pytest
from fastapi.testclient import TestClient
from msgspec.structs import replace

from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.replay import JournalReplay
from astraflow_testing.small_disk import largest_file
from astraflow_wire import messages
from astraflow_wire.batches import decode_batch
from astraflow_wire.http.client import NO_ROOM

HEADERS = {"authorization": "Bearer t"}


def no_room(journal):
    """No file can grow beyond what the entries are now."""
    return largest_file((journal / "entries.log").stat().st_size)


class Callers:
    """A RaaS and a trainer that make each call again until it is answered. From call number ``full_at`` on the disk is
    full; the dataflow is then killed, which frees room, and another one continues from the journal."""

    def __init__(self, make_bench, make_config, journal, group, full_at):
        self.wakeups = Wakeups()
        config = make_config(run__steps=2, checkpoint__every=1, run__lease_s=0.1)
        self.bench = make_bench(config, journal=journal, signals=self.wakeups).begin()
        self.journal, self.group, self.full_at, self.calls = journal, group, full_at, 0
        self.serve()

    def serve(self):
        app = DataflowService(self.bench.flow, self.wakeups, "t").app
        self.client = TestClient(app, headers=HEADERS, raise_server_exceptions=False)

    def killed(self):
        """Kill the process, with all that it kept in memory."""
        os.close(self.bench.state.records._journal._entries._file)
        flow, journal = self.bench.build(), Journal(self.journal, lambda: self.bench.time[0])
        JournalReplay(flow, journal.reader, partial(self.bench.time.__setitem__, 0)).run(
            journal.entries()
        )
        flow.state.restore(journal, resumed=False)
        self.bench.flow = flow
        self.serve()

    def call(self, path, message):
        if hasattr(message, "incarnation"):
            message = replace(message, incarnation=1)
        content = message if isinstance(message, bytes) else messages.encode(message)
        self.calls += 1
        if self.calls == self.full_at:
            with no_room(self.journal):
                answer = self.client.post(path, content=content)
                assert answer.status_code == NO_ROOM, answer.text
                assert "there is no disk space for the records of the run" in answer.json()["error"]
                assert self.client.get("/v1/status").json()["held_back"]
            self.killed()
        answer = self.client.post(path, content=content)
        assert answer.status_code == 200, f"{path} said {answer.status_code}: {answer.text}"
        return answer.content

    def one_step(self, version):
        seen = {"solver": version}
        lease = messages.LeaseTasks(raas="r0", free=8, wait_s=0, serving=seen, seen=seen)
        leased = messages.decode(self.call("/v1/tasks/lease", lease), messages.TasksLeased)
        assert len(leased.tasks) >= 2
        for task in leased.tasks[:2]:
            rewards = tuple(float(i % 2) for i in range(task.group_size))
            self.call(
                "/v1/groups",
                self.group(task.id, task.prompt_id, "r0", rewards=rewards, version=version),
            )
        ask = messages.NextBatch(policy="solver", version=version, wait_s=0)
        batch = decode_batch(self.call("/v1/batches/next", ask))
        told = messages.AnnouncementMessage(
            policy="solver",
            version=version + 1,
            transport="x",
            endpoints=[],
            digest=f"d{version + 1}",
            size=1,
        )
        self.call("/v1/versions", told)
        done = messages.AcknowledgeBatch(
            policy="solver", batch=batch.id, version=version + 1, metrics={}
        )
        self.call("/v1/batches/ack", done)
        self.call(
            "/v1/batches/release", messages.ReleaseBatches(policy="solver", updates=version + 1)
        )


CALLS = 7


@pytest.mark.parametrize("full_at", range(1, CALLS + 1))
def test_each_call_may_find_no_room_and_a_dataflow_that_dies(
    bench, config, tmp_path, body, full_at
):
    callers = Callers(bench, config, tmp_path, body, full_at)
    callers.one_step(0)
    assert callers.calls == CALLS
    callers.one_step(1)
    assert callers.bench.state.streams["solver"].updates == 2
    callers.bench.check()


def test_at_the_end_of_a_run_no_caller_is_kept_waiting(bench, config, tmp_path, body):
    callers = Callers(bench, config, tmp_path, body, 0)
    with no_room(tmp_path):
        callers.call("/v1/stop", messages.StopRun(reason="enough"))
        ask = messages.NextBatch(policy="solver", version=0, wait_s=0)
        assert decode_batch(callers.call("/v1/batches/next", ask)).ended
        callers.call("/v1/raas/leave", messages.LeaveRaas(raas="r0", reason="stopped"))


def test_a_new_file_of_bodies_waits_for_room(tmp_path, monkeypatch):
    """The current file is used meanwhile."""
    journal = Journal(tmp_path, lambda: 0.0, segment_bytes=10)
    journal.keep(bytes(12))
    opened = os.open

    def full(path, *arguments):
        if str(path).endswith("bodies-00000001.bin"):
            raise OSError(28, "No space left on device")
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", full)
    assert journal.keep(bytes(6)).segment == 0
    monkeypatch.undo()
    place = journal.keep(b"later")
    assert (place.segment, journal.reader.body(place)) == (1, b"later")
    journal.close()


def test_a_run_whose_disk_is_full_is_not_given_up(bench, config, tmp_path, monkeypatch):
    """A silent process may be waiting for disk space; once there is some, its deadline starts anew."""
    b = bench(config(run__deadline_s=10.0, run__start_deadline_s=50.0), journal=tmp_path).begin()
    full = ["No space left on device"]
    monkeypatch.setattr(type(b.state.records), "lacking", lambda records: full[0])
    for _ in range(20):
        b.pass_time(100)
    assert b.state.progress.state == "running"
    full[0] = ""
    b.pass_time(1)
    b.pass_time(40)
    assert b.state.progress.state == "running"
    b.pass_time(20)
    assert b.state.progress.state == "failed"
    assert "no RaaS has reported" in b.state.progress.reason


def test_a_run_whose_disk_is_full_for_a_day_is_given_up(bench, config, tmp_path, monkeypatch):
    b = bench(config(run__deadline_s=10.0), journal=tmp_path).begin()
    monkeypatch.setattr(type(b.state.records), "lacking", lambda records: "No space left on device")
    states = []
    for _ in range(26):
        b.pass_time(3600)
        states.append(str(b.state.progress.state))
    assert states.index("failed") == 24


def test_what_is_left_at_the_end_names_its_process(tmp_path):
    from astraflow_runtime.dataflow.main import _write_status

    _write_status(tmp_path, {"state": "finished"}, 0.0)
    assert json.loads((tmp_path / "status.json").read_text()) == {
        "pid": os.getpid(),
        "state": "finished",
    }
