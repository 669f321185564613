"""Messages that an attacker with the token may send, and a dataflow that gets them within one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import math
import random
import time
from datetime import UTC, datetime

import msgspec
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from astraflow_core.errors import Refused
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_runtime.dataflow.journal.journal import Journal
from astraflow_runtime.dataflow.progress import RunState
from astraflow_runtime.dataflow.replay import JournalReplay
from astraflow_wire import messages
from astraflow_wire.frames import Frame, encode_frame
from astraflow_wire.groups import GroupHeader
from astraflow_wire.http import drafts, recovery

TOKEN = "of-this-run"
VIEWS = ("/v1/status", "/v1/waits", "/v1/balance", "/v1/health")
TIMER_S = 10.0
NESTED = msgspec.Raw(b"\x91" * 5000 + b"\xc0")
VALUES = (
    None, True, False, 0, 1, 7, -1, 2**31, 2**53 + 1, 2**62, 2**63, 2**64 - 1, -(2**63),
    math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 1e99, -0.0, 0.5,
    "", "x" * 300, "x" * 70_000, "\0", "\x1b[2J", "solver", "nobody", "r0", "prompts", "Calm",
    "train-0", "train-00", "train-+1", "train-1_0", "train-\u0663", "train-" + "9" * 5000, "eval-0", "eval-00",
    "os:environ", b"", b"\xff" * 100, [], [[]], [0], [-1], ["x"] * 3, [2**62] * 3, [None], {},
    list(range(70_000)), {str(i): 1.0 for i in range(600)}, {"solver": 0}, {"solver": 2**62}, {"solver": math.nan},
    {"nobody": 0}, {0: 1}, {"tokens_generated": -1.0}, {"tokens_generated": 1e99}, {"solver/probe_version": 1.0},
    {"solver/swaps": 5e-324, "solver/pull_s": 1e99}, {"use": "Calm", "x": math.inf}, {"use": "os:environ"},
    {"use": "Calm", "x": datetime(2026, 1, 1, tzinfo=UTC)}, msgspec.msgpack.Ext(5, b"a"), NESTED,
)  # fmt: skip


def spoilt(message, random_):
    """``message``, as plain values, with one to three of its parts replaced, added or left out."""
    parts = msgspec.to_builtins(message, builtin_types=(bytes,))
    for _ in range(random_.randint(1, 3)):
        holder = parts
        while True:
            keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not keys:
                break
            key = random_.choice(keys)
            inner = holder[key]
            if isinstance(inner, (dict, list)) and inner and random_.random() < 0.6:
                holder = inner
                continue
            if random_.random() < 0.1:
                del holder[key]
            elif isinstance(holder, dict) and random_.random() < 0.05:
                holder["unknown"] = copy.deepcopy(random_.choice(VALUES))
            else:
                holder[key] = copy.deepcopy(random_.choice(VALUES))
            break
    return msgspec.msgpack.encode(parts)


def places(parts, way=()):
    """The ways to all parts of plain values."""
    if way:
        yield way
    inner = parts.items() if isinstance(parts, dict) else ()
    inner = enumerate(parts) if isinstance(parts, list) else inner
    for key, part in inner:
        yield from places(part, (*way, key))


def replaced(message, way, value):
    """``message`` with ``value`` at a place of it; unchanged if it has no such place now."""
    parts = holder = msgspec.to_builtins(message, builtin_types=(bytes,))
    for key in way[:-1]:
        if not holder[key]:
            return parts
        holder = holder[key]
    holder[way[-1]] = value
    return parts


def mutated(body, random_):
    """``body`` with a few bytes changed, lost or added, or its end cut off."""
    changed = bytearray(body)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(changed) + 1)
        act = random_.randrange(4)
        if act == 0 and at < len(changed):
            changed[at] = random_.randrange(256)
        elif act == 1:
            changed[at:at] = random_.randbytes(random_.randint(1, 8))
        elif act == 2:
            del changed[at : at + random_.randint(1, 8)]
        elif random_.random() < 0.2:
            del changed[at:]
    return bytes(changed)


class Attacked:
    """A dataflow at work behind its app: a trainer, RaaS ``r0`` and ``r1``, tasks that they hold."""

    def __init__(self, make_bench, config, group_body, folder, **parts):
        self.wakeups = Wakeups()
        calm = {"use": "Calm"}
        made = config(
            run__steps=100_000,
            run__max_staleness=64,
            run__max_consecutive_failures=10_000,
            run__task_attempts=3,
            policy__batch_sequences=64,
            prompts__data=[calm],
            eval__every=10_000,
        )
        self.bench = make_bench(
            made,
            prompts=100_000,
            evals={"held": 2},
            admission=[Calm],
            journal=folder,
            signals=self.wakeups,
            build_policy=lambda place, table, number: Calm(**table.options),
            **parts,
        )
        self.folder, self.group_body = folder, group_body
        self.bench.begin("r0", "r1")
        self.bench.state.fleet.suspect_s = (
            0.01  # a name whose holder is silent is free after a short wait
        )
        self.app = DataflowService(self.bench.flow, self.wakeups, TOKEN).app
        self.number = 0

    # -- calls -----------------------------------------------------------------------------------

    async def call(self, method, path, body=b""):
        """Status and body of the answer."""
        path, _, query = path.partition("?")
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
            "path": path, "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
            "headers": [(b"authorization", b"Bearer " + TOKEN.encode())],
        }  # fmt: skip
        pending = [{"type": "http.request", "body": body, "more_body": False}]
        status, content = 0, bytearray()

        async def receive():
            return pending.pop() if pending else await asyncio.Event().wait()

        async def send(message):
            nonlocal status
            status = message.get("status", status)
            content.extend(message.get("body", b""))

        await self.app(scope, receive, send)
        return status, bytes(content)

    async def post(self, path, body):
        """The same for a message, or the bytes of one, that must not harm the run or other processes."""
        if isinstance(body, messages.Message):
            body = messages.encode(body)
        status, content = await self.call("POST", path, body)
        assert 200 <= status < 500, (path, status, content[:500], body[:500])
        if status >= 400:
            assert json.loads(content)["error"]
        return status, content

    # -- invariants after any message -------------------------------------------------------------

    async def check(self, may_end=False):
        """The run continues, its views can be read, and timers fire."""
        progress = self.bench.state.progress
        assert may_end or progress.state is RunState.RUNNING, progress.reason
        for path in VIEWS:
            status, content = await self.call("GET", path)
            assert status == 200, (path, content[:500])
            json.loads(content, parse_constant=_refuse)
        status, content = await self.call("GET", "/metrics")
        assert status == 200, content[:500]
        assert list(text_string_to_metric_families(content.decode()))
        await self.check_timers()

    async def check_timers(self):
        fired, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.call_later(0.001, fired.set)
        until = time.monotonic() + TIMER_S
        # Called directly and not by a timer of the loop: the timers are under test.
        while not fired.is_set():
            assert time.monotonic() < until, "timers of the event loop no longer fire"
            await asyncio.sleep(0)

    def check_journal(self):
        """Another dataflow comes to the same from the journal."""
        bench, state = self.bench, self.bench.state
        then = facts(state)
        state.close()
        bench.flow = bench.build()
        journal = Journal(self.folder, lambda: bench.time[0])
        JournalReplay(bench.flow, journal.reader, lambda seconds: None).run(journal.entries())
        assert facts(bench.state) == then
        journal.close()

    # -- valid messages ---------------------------------------------------------------------------

    def task(self):
        """Id and prompt of a task of training that ``r0`` holds; of any if there is none for it now."""
        state = self.bench.state
        if not state.train.held_by("r0"):
            if "r0" not in [record.name for record in state.fleet.present()]:
                self.bench.register_raas("r0")
            self.bench.lease(16, serving=state.versions.newest["solver"])
        held = sorted(state.train.held_by("r0"))
        return (held[0], state.train.get(held[0]).prompt.id) if held else ("train-0", "p0")

    def group(self):
        """Header and buffers of the group of such a task."""
        version = self.bench.state.versions.newest["solver"]
        frame = Frame(self.group_body(*self.task(), version=version))
        header = msgspec.msgpack.decode(frame.header, type=GroupHeader)
        return header, [np.frombuffer(buffer, np.uint8) for buffer in frame.buffers]

    def honest(self, path):
        """A valid message for ``path``."""
        self.number += 1
        newest = self.bench.state.versions.newest["solver"]
        serving, id = {"solver": newest}, f"id-{self.number}"
        wait = messages.Wait(who="r0", for_whom="trainer", what="blocks", since_s=1.0, until_s=2.0)
        figures = {"tokens_generated": 5.0, "solver/swaps": 1.0, "solver/link_mb_s": 3.0}
        probe = {f"solver/probe_{name}": 0.0 for name in ("version", "mean", "largest")}
        rows = messages.Probe(lengths=[2], tokens=bytes(8), sampled=bytes(2), logprobs=bytes(8))
        made = {
            "/v1/raas/register": lambda: messages.RegisterRaas(
                raas="r1", pid=1, host="h", policies=["solver"], capacity=8
            ),
            "/v1/tasks/lease": lambda: messages.LeaseTasks(
                raas="r1", free=2, wait_s=0.0, serving=serving, seen=serving
            ),
            "/v1/tasks/renew": lambda: messages.RenewLeases(
                raas="r0", tasks=[self.task()[0]], serving=serving, seen=serving,
                metrics=figures | probe, waits=[wait],
            ),
            "/v1/tasks/fail": lambda: messages.FailTask(
                raas="r0", task=self.task()[0], error="boom"
            ),
            "/v1/tasks/drafts": lambda: drafts.AskDrafts(
                raas="r0", task=self.task()[0], most_bytes={"solver": 1000}
            ),
            "/v1/raas/leave": lambda: messages.LeaveRaas(raas="r1", reason="enough"),
            "/v1/raas/add": lambda: messages.AddRaas(id=id, count=1, author="ada"),
            "/v1/raas/drain": lambda: messages.DrainRaas(raas="r1", author="ada"),
            "/v1/trainers/register": lambda: messages.RegisterTrainer(
                policy="solver", pid=1, host="h", updates=(0,)
            ),
            "/v1/trainers/failed": lambda: messages.TrainerFailed(policy="solver", error="boom"),
            "/v1/versions": lambda: messages.AnnouncementMessage(
                policy="solver", version=min(newest + 1, 2**31 - 1), transport="x",
                endpoints=["e"], digest="d", size=1, probe=rows,
            ),
            "/v1/versions/recover": lambda: recovery.RecoverVersion(policy="solver", wait_s=0.0),
            "/v1/versions/offer": lambda: recovery.OfferVersion(
                raas="r0", policy="solver", version=newest, transport="x", endpoints=["e"],
                digest="d", size=1,
            ),
            "/v1/batches/next": lambda: messages.NextBatch(
                policy="solver", version=newest, wait_s=0.0
            ),
            "/v1/batches/ack": lambda: messages.AcknowledgeBatch(
                policy="solver", batch=self.batch(), version=newest, metrics={"loss": 0.5}
            ),
            "/v1/batches/release": lambda: messages.ReleaseBatches(policy="solver", updates=0),
            "/v1/access/revoke": lambda: messages.RevokeToken(
                role="viewer", name="ada", author="bob"
            ),
            "/v1/stop": lambda: messages.StopRun(reason="enough"),
            "/v1/data_policies/swap": lambda: messages.SwapPolicy(
                id=id, place="prompts", name="Calm", author="ada", at=1.0,
                table={"use": "Calm", "x": 1},
            ),
        }  # fmt: skip
        if path not in made:
            return None
        message, state = made[path](), self.bench.state
        if (record := state.fleet.get(getattr(message, "raas", ""))) is None:
            record = state.trainers.get(getattr(message, "policy", ""))
        if record is not None and hasattr(message, "incarnation"):
            message = msgspec.structs.replace(message, incarnation=record.incarnation)
        return message

    def batch(self):
        """The batch that is being trained."""
        stream = self.bench.state.streams["solver"]
        version = self.bench.state.versions.newest["solver"]
        with contextlib.suppress(Refused):
            for _ in range(64):
                if stream.outstanding is not None or len(stream.buffer) >= 64:
                    break
                self.bench.flow.intake.accept(self.group_body(*self.task(), version=version))
            self.bench.next_batch(version)
        return stream.outstanding.id if stream.outstanding else "solver-000000"

    def paths(self):
        """Every path that takes a POST."""
        return [
            route.path
            for route in self.app.routes
            if "POST" in (getattr(route, "methods", None) or ())
        ]

    def hostile(self, path, random_):
        """The body of a request that is nearly one that the dataflow would take."""
        if path == "/v1/groups":
            header, columns = self.group()
            if random_.random() < 0.3:
                return mutated(encode_frame(header, columns), random_)
            spoilt_header = msgspec.Raw(spoilt(header, random_))
            return encode_frame(spoilt_header, columns)
        message = self.honest(path)
        if random_.random() < 0.3:
            return mutated(messages.encode(message), random_)
        return spoilt(message, random_)


class Calm:
    """Admits everything; takes any keys."""

    def __init__(self, **keys):
        self.keys = keys

    def admit(self, prompt):
        return True


def facts(state):
    """Its entry in a journal."""
    return {
        "newest": dict(state.versions.newest),
        "updates": {policy: stream.updates for policy, stream in state.streams.items()},
        "rows": {policy: stream.rows.accepted for policy, stream in state.streams.items()},
        "outcomes": dict(state.train.outcomes),
        "queue": [task.id for task in state.train._queue],
        "leased": sorted(task.id for task in state.train.leased()),
        "raas": sorted(record.name for record in state.fleet.present()),
        "draining": sorted(r.name for r in state.fleet.present() if r.draining),
        "swaps": state.swaps,
    }


def _refuse(constant):
    raise AssertionError(f"{constant} is not JSON")


def attack_each_field(attacked, path, may_end=False):
    """Every part of a message that would be taken, replaced by every hostile value, and what must hold then."""

    def honest():
        return attacked.group() if path == "/v1/groups" else (attacked.honest(path), None)

    async def play():
        plain = msgspec.to_builtins(honest()[0], builtin_types=(bytes,))
        for way in places(plain):
            for value in VALUES:
                message, columns = honest()
                body = msgspec.msgpack.encode(replaced(message, way, value))
                if columns is not None:
                    body = encode_frame(msgspec.Raw(body), columns)
                await attacked.post(path, body)
            await attacked.check(may_end)

    asyncio.run(play())
    attacked.check_journal()


def attack(attacked, paths, count, seed, may_end=False):
    """``count`` hostile requests among honest ones, while time passes, and what must hold then. Returns how many of
    the hostile ones were taken: what was changed may be valid, too."""

    async def play():
        random_ = random.Random(f"{paths} {seed}")
        taken = 0
        for number in range(count):
            path = random_.choice(paths)
            if number % 5 == 4 and (honest := attacked.honest(path)) and not may_end:
                await attacked.post(path, honest)
            status, _ = await attacked.post(path, attacked.hostile(path, random_))
            taken += status < 300
            if number % 50 == 49:
                attacked.bench.pass_time(1.0)
            if number % 20 == 0:
                await attacked.check(may_end)
        await attacked.check(may_end)
        return taken

    taken = asyncio.run(play())
    attacked.check_journal()
    return taken
