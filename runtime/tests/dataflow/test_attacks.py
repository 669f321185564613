"""Messages that once harmed the run: each is refused, and the run continues as if nothing had come."""

from __future__ import annotations

import asyncio
import json
import math
import sys

import msgspec
import numpy as np
import pytest
from hostile import NESTED, Attacked

from astraflow_core.catalog import Catalog
from astraflow_core.errors import Refused, RunFailed
from astraflow_core.shared_secret import shared_secret
from astraflow_runtime.dataflow.fleet import raas as fleet
from astraflow_runtime.dataflow.http import service
from astraflow_runtime.dataflow.journal.entries import Swapped
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.main import policy_builder
from astraflow_runtime.dataflow.progress import RunState
from astraflow_wire import limits, messages
from astraflow_wire.frames import encode_frame
from astraflow_wire.groups import GroupHeader

BIG = 2**62


@pytest.fixture
def attacked(bench, config, body, tmp_path, monkeypatch):
    monkeypatch.setattr(service, "LONGEST_POLL_S", 0.001)
    made = Attacked(bench, config, body, tmp_path / "journal")
    yield made
    made.bench.state.close()


def changed(path, **parts):
    """A message that the dataflow would take but for ``parts``, which may be of any type."""

    def make(attacked):
        given = msgspec.to_builtins(attacked.honest(path), builtin_types=(bytes,))
        return path, msgspec.msgpack.encode(given | parts)

    return make


def pushed(**parts):
    def make(attacked):
        header, columns = attacked.group()
        given = msgspec.to_builtins(header) | parts
        return "/v1/groups", encode_frame(msgspec.Raw(msgspec.msgpack.encode(given)), columns)

    return make


def with_lengths(*lengths):
    def make(attacked):
        header, _ = attacked.group()
        sequences = [["solver", length, 0.0, 0, False, -1] for length in lengths]
        given = msgspec.to_builtins(header) | {"sequences": sequences}
        empty = [np.empty(0, np.uint8)] * 4
        return "/v1/groups", encode_frame(msgspec.Raw(msgspec.msgpack.encode(given)), empty)

    return make


LEASE, RENEW, PUSH = "/v1/tasks/lease", "/v1/tasks/renew", "/v1/groups"
ATTACKS = {
    "a task with a leading zero fails": (changed("/v1/tasks/fail", task="train-00"), 200, ""),
    "one with another alphabet's digit": (changed("/v1/tasks/fail", task="train-\u0660"), 200, ""),
    "one of 5,000 digits": (changed("/v1/tasks/fail", task="train-" + "9" * 5000), 400, "task"),
    "one of 200 digits": (changed("/v1/tasks/fail", task="train-" + "9" * 200), 200, ""),
    "a group of a task with a leading zero": (pushed(task="train-00"), 409, "train-00"),
    "a heartbeat with such a task": (changed(RENEW, tasks=["train-00"]), 200, ""),
    "lengths whose sum wraps": (with_lengths(BIG, BIG, BIG, BIG), 400, "sequences"),
    "a length that int64 does not hold": (with_lengths(2**63), 400, "sequences"),
    "a header nested deeply": (pushed(turns=NESTED), 400, "GroupHeader"),
    "a message nested deeply": (
        changed("/v1/data_policies/swap", table=NESTED), 400, "SwapPolicy",
    ),
    "half of a probe": (
        changed(RENEW, metrics={"solver/probe_version": 0.0}), 400, "solver/probe_mean is missing",
    ),
    "too many RaaS at once": (changed("/v1/raas/add", count=BIG), 400, "count"),
    "fifty thousand RaaS": (changed("/v1/raas/add", count=50_000), 400, "count"),
    "no capacity": (changed("/v1/raas/register", capacity=0), 400, "no capacity"),
    "a capacity that int64 does not hold": (changed("/v1/raas/register", capacity=2**63), 400, "capacity"),
    "a wait that is not a number": (changed(LEASE, wait_s=math.nan), 400, "wait_s"),
    "an endless wait": (changed("/v1/batches/next", wait_s=math.inf), 400, "wait_s"),
    "a negative wait": (changed(LEASE, wait_s=-1.0), 400, "wait_s"),
    "a metric that is not a number": (changed(RENEW, metrics={"x": math.nan}), 400, "metrics"),
    "an infinite metric of a step": (
        changed("/v1/batches/ack", metrics={"x": math.inf}), 400, "metrics",
    ),
    "a wait since infinity": (
        changed(RENEW, waits=[{"who": "a", "for_whom": "b", "what": "c", "since_s": math.inf, "until_s": 1.0}]),
        400, "since_s",
    ),
    "tokens that were never generated": (
        changed(RENEW, metrics={"tokens_generated": -5.0}), 400, "tokens_generated",
    ),
    "200,000 metrics": (
        changed(RENEW, metrics={f"m{i}": 1.0 for i in range(200_000)}), 400, "metrics",
    ),
    "a metric with a long name": (changed(RENEW, metrics={"x" * 129: 1.0}), 400, "metrics"),
    "a RaaS with a long name": (changed("/v1/raas/register", raas="x" * 257), 400, "raas"),
    "a policy that is not of the run": (changed(RENEW, serving={"nobody": 0}), 400, "nobody"),
    "a version beyond int32": (changed("/v1/versions", version=2**31), 400, "version"),
    "a time that is not a number": (changed("/v1/data_policies/swap", at=math.nan), 400, "at"),
    "a table with what JSON has no word for": (
        changed("/v1/data_policies/swap", table={"use": "Calm", "x": [math.inf]}), 400, r"table.x[0]",
    ),
    "a table with bytes": (
        changed("/v1/data_policies/swap", table={"use": "Calm", "x": b"1"}), 400, "table.x",
    ),
    "a table without end": (
        changed("/v1/data_policies/swap", table={"use": "Calm", "x": [1] * 2000}), 400, "over 1024 values",
    ),
    "an import": (changed("/v1/data_policies/swap", table={"use": "os:environ"}), 403, "os:environ"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_the_sender_is_refused_and_the_run_continues(name, attacked):
    make, expected, words = ATTACKS[name]

    async def play():
        await attacked.check()
        for _ in range(10):
            status, content = await attacked.post(*make(attacked))
            assert status == expected, content[:300]
            assert words in content.decode(errors="replace")
            assert len(content) < 1000
        await attacked.check()
        # An honest step still works, to the end.
        status, _ = await attacked.post("/v1/batches/ack", attacked.honest("/v1/batches/ack"))
        assert status == 200
        await attacked.check()

    asyncio.run(play())
    attacked.check_journal()


def test_an_error_in_the_state_itself_stays_loud(attacked):
    """An invalid message is refused; an internal error is not treated as one."""
    beat = attacked.honest(RENEW)
    attacked.bench.state.advance_evaluations = None

    async def play():
        with pytest.raises(TypeError):
            await attacked.post(RENEW, beat)

    asyncio.run(play())
    progress = attacked.bench.state.progress
    assert progress.state is RunState.FAILED
    assert "TypeError" in progress.reason


def test_texts_for_people_are_cut_and_not_refused(attacked):
    long = "€" * 20_000

    async def play():
        wait = {"who": long, "for_whom": long, "what": long, "since_s": 0.0, "until_s": 0.0}
        for path, parts in [
            (RENEW, {"waits": [wait] * 100}),
            ("/v1/tasks/fail", {"error": long}),
            ("/v1/tasks/fail", {"error": long}),
            ("/v1/tasks/fail", {"error": long}),
            ("/v1/stop", {"reason": long}),
        ]:
            status, content = await attacked.post(*changed(path, **parts)(attacked))
            assert status == 200, content
            for _ in range(3):
                attacked.bench.lease(16)
        _, content = await attacked.call("GET", "/v1/status")
        shown = json.loads(content)
        assert len(shown["reason"]) == limits.MAX_TEXT
        assert shown["reason"].endswith("€…")
        assert {len(each["what"]) for each in shown["waits"] if "€" in each["what"]} == {
            limits.MAX_WAIT_TEXT
        }
        assert len(content) < 1 << 18

    asyncio.run(play())


def test_the_status_of_one_raas_is_bounded(attacked):
    """The largest report that is taken."""
    metrics = {
        f"{i:0{limits.MAX_LABEL}}": -1.2345678901234567e99 for i in range(limits.MAX_METRICS)
    }
    text = "x" * limits.MAX_WAIT_TEXT
    wait = {"who": text, "for_whom": text, "what": text, "since_s": 1e99, "until_s": 1e99}
    parts = {"metrics": metrics, "waits": [wait] * 5000}

    async def play():
        _, before = await attacked.call("GET", "/v1/status")
        status, content = await attacked.post(*changed(RENEW, **parts)(attacked))
        assert status == 200, content
        _, after = await attacked.call("GET", "/v1/status")
        assert len(after) - len(before) < 200_000
        await attacked.check()

    asyncio.run(play())


def test_so_many_raas_and_those_that_left_are_forgotten(bench, config, monkeypatch, tmp_path):
    monkeypatch.setattr(fleet, "MAX_RAAS", 4)
    b = bench(config(), journal=tmp_path).begin("r0", "r1", "r2", "r3")
    with pytest.raises(
        Refused, match="cannot register RaaS 'r4': the run already has the maximum of 4"
    ) as refused:
        b.register_raas("r4")
    assert refused.value.status == 409
    b.register_raas("r3")  # it comes back under its name
    for number in range(20):
        b.leave("r1" if number == 0 else f"n{number - 1}")
        b.register_raas(f"n{number}")
    assert sorted(r.name for r in b.state.fleet.all()) == ["n19", "r0", "r2", "r3"]
    b.leave("nobody")
    b.restart().state.close()


def test_more_raas_than_may_be_are_not_asked_for(bench, config):
    b = bench(config()).begin("r0", "r1")
    for number in range(4):
        b.add(limits.MAX_ADDED, id=f"{number}")
    with pytest.raises(Refused, match="1025 more RaaS than in the config"):
        b.add(1, id="more")
    b.drain("r1")
    assert b.add(1, id="again").added == limits.MAX_RAAS + 1


class Named:
    """What the config of the run names."""

    def __init__(self, config, context):
        self.context = context

    def admit(self, prompt):
        return True


def swap(b, use, id="1"):
    message = messages.SwapPolicy(
        id=id, place="prompts", name="calm", author="eve", at=1.0, table={"use": use}
    )
    return b.flow.swapping.swap(message)


@pytest.fixture
def swapped(bench, config, tmp_path, monkeypatch):
    """A run whose config names ``attack_named:Named``; ``attack_other`` says when it is imported."""
    (tmp_path / "attack_other.py").write_text("class Thing:\n    def __init__(self, *a): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "attack_named", sys.modules[__name__])
    data = [{"use": "attack_named:Named", "name": "calm"}]
    made = config(prompts__data=data)
    build = policy_builder(made, tmp_path / "run", "t0ken", Catalog.discover())
    calm = type("calm", (), {"admit": lambda self, prompt: True})
    b = bench(made, admission=[calm], journal=tmp_path / "journal", build_policy=build)
    yield b.begin()
    b.state.close()
    sys.modules.pop("attack_other", None)


def test_only_what_the_config_names_is_imported(swapped):
    for use in ("attack_other:Thing", "os:environ", "builtins:print", "attack_named:Other"):
        with pytest.raises(Refused) as refused:
            swap(swapped, use)
        assert refused.value.status == 403
        assert "is not a data policy in the config" in str(refused.value)
    assert "attack_other" not in sys.modules
    swap(swapped, "attack_named:Named")
    component = swapped.state.admission.chain.policy("calm").component
    assert isinstance(component, Named)
    assert "t0ken" not in repr(component.context)
    assert component.context.token == shared_secret("t0ken")
    swapped.restart()


def test_a_swap_in_the_journal_passes_the_same_gate(swapped):
    message = messages.SwapPolicy(
        id="1",
        place="prompts",
        name="calm",
        author="eve",
        at=1.0,
        table={"use": "attack_other:Thing"},
    )
    swapped.state.records.append(Swapped(message=message, versions={"solver": 0}))
    with pytest.raises(RunFailed, match="attack_other:Thing"):
        swapped.restart()
    assert "attack_other" not in sys.modules


def test_an_installed_policy_that_cannot_be_made_with_the_keys_is_the_senders_mistake(
    bench, config
):
    def build(place, table, number):
        raise OSError(2, "No such file", "/nowhere")

    calm = type("calm", (), {"admit": lambda self, prompt: True})
    made = config(prompts__data=[{"use": "calm"}])
    b = bench(made, admission=[calm], build_policy=build).begin()
    with pytest.raises(Refused, match=r"prompts\.calm: .*FileNotFoundError.*nowhere"):
        swap(b, "other")
    assert b.state.progress.state is RunState.RUNNING


def test_a_swap_is_made_so_often(bench, config, monkeypatch):
    from astraflow_runtime.dataflow.policies import swapping

    monkeypatch.setattr(swapping, "MAX_SWAPS", 2)
    calm = type("calm", (), {"admit": lambda self, prompt: True})
    made = config(prompts__data=[{"use": "calm"}])
    b = bench(made, admission=[calm], build_policy=lambda *_: calm()).begin()
    swap(b, "calm", "1")
    swap(b, "calm", "2")
    with pytest.raises(Refused, match="limit of 2 data policy swaps"):
        swap(b, "calm", "3")
    assert swap(b, "calm", "2").number == 2


def test_a_full_report_of_a_step_can_be_read_again(bench, config, tmp_path):
    """The dataflow adds what RaaS probed to the metrics of a step, within the same bound."""
    b = bench(config(), journal=tmp_path).begin()
    probe = {f"solver/probe_{name}": 1.0 for name in ("version", "mean", "largest")}
    serving = {"solver": 0}
    beat = messages.RenewLeases(raas="r0", tasks=[], serving=serving, seen=serving, metrics=probe)
    b.flow.leasing.renew(beat)
    for task in b.lease(4)[0]:
        b.push(task)
    metrics = {f"m{number}": 1.0 for number in range(limits.MAX_METRICS)}
    done = messages.AcknowledgeBatch(
        policy="solver", batch=b.next_batch(0).id, version=0, metrics=metrics
    )
    b.flow.training.acknowledge(done)
    assert "probe_mean" in b.state.trainers["solver"].metrics
    b.state.close()
    journal = Journal(tmp_path, lambda: 0.0)
    assert len(list(journal.entries())) > 5
    journal.close()


def test_senders_leave_out_what_would_be_refused():
    odd = {
        "fine": 1.0,
        "nan": math.nan,
        "inf": -math.inf,
        "x" * 200: 1.0,
        "int": 3,
        "np": np.float32(2),
        "npinf": np.float32(math.inf),
    }
    assert limits.sendable(odd) == {"fine": 1.0, "int": 3, "np": 2.0}
    assert len(limits.sendable({str(i): 1.0 for i in range(5000)})) == limits.MAX_METRICS


def test_a_header_is_bounded_before_its_sequences_are_looked_at():
    with pytest.raises(msgspec.ValidationError, match="length <= 65536"):
        header = {"type": "group", "raas": "r", "task": "t", "prompt_id": "p", "trajectories": 1}
        many = header | {"sequences": [["p", 1, 0.0, 0, False, -1]] * 65_537}
        msgspec.msgpack.decode(msgspec.msgpack.encode(many), type=GroupHeader)
