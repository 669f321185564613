"""A real dataflow that is killed with ``kill -9`` continues exactly as one that is not."""

from __future__ import annotations

import random
import tempfile

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from real_service import RealDataflow

from astraflow_core.errors import Refused

pytestmark = pytest.mark.timeout(180)
VOLATILE = {"elapsed_s", "eta_s", "raas", "samples", "waits", "seed"}
OF_THE_PROCESS = {"wait_fraction", "last_heard_s", "trainer_wait_fraction", "waiting_s"}


def settings_of(config, **changes):
    part = {"use": "my_parts:Prompts"}  # never built here, but it must exist
    parts = {f"policy__{kind}": part for kind in ("trainer", "algorithm", "engine", "transport")}
    return config(
        prompts__use="my_parts:Prompts",
        prompts__shuffle=True,
        prompts__data=[{"use": "my_parts:Picky"}],
        policy__data=[{"use": "my_parts:Picky"}],
        launcher__use="local",
        run__max_consecutive_failures=10**6,
        **{**parts, **changes},
    )


def facts(status):
    """What the status says of the run, without what belongs to the process that answers."""
    kept = {key: value for key, value in status.items() if key not in VOLATILE}
    kept["tasks"] = {k: v for k, v in kept["tasks"].items() if k not in ("duplicates", "late")}
    kept["policies"] = {
        policy: {key: value for key, value in figures.items() if key not in OF_THE_PROCESS}
        for policy, figures in kept["policies"].items()
    }
    return kept


def play(service, body, kill_before, steps=12):
    """One scripted RaaS and trainer; ``kill_before``: numbers of calls before which the dataflow dies.
    Returns the bytes of every batch and the last status."""
    script, calls, batches, version = random.Random(5), 0, [], 0

    def between_calls():
        nonlocal calls
        if calls in kill_before:
            before = facts(service.look("status"))
            service.restart()
            assert facts(service.look("status")) == before
        calls += 1

    service.register_trainer()
    service.announce(0)
    service.register_raas("r0")
    while len(batches) < steps:
        between_calls()
        for task in service.lease("r0", 8, version):
            between_calls()
            if script.random() < 0.1:
                service.fail("r0", task.id)
                continue
            rewards = [script.choice([0.0, 0.5, 1.0]) for _ in range(task.group_size)]
            number = service.incarnations["r0"]
            group = body(
                task.id, task.prompt_id, rewards=rewards, version=version, incarnation=number
            )
            service.push(group)
        between_calls()
        content, batch = service.next_batch(version)
        if batch is None:
            continue
        batches.append(content)
        version += 1
        between_calls()
        service.announce(version)
        between_calls()
        service.acknowledge(batch.id, version)
        between_calls()
        service.renew("r0", [], version)
        if len(batches) % 3 == 0:
            service.release(len(batches))
    return batches, facts(service.look("status")), calls


@pytest.mark.slow
def test_a_killed_dataflow_continues_bit_by_bit(config, body, tmp_path):
    model = settings_of(config, run__steps=20, run__max_staleness=2, checkpoint__every=3)
    results = []
    for name, kills in (("whole", set()), ("killed", {1, 6, 21, 22, 40, 63})):
        service = RealDataflow(model, tmp_path / name)
        try:
            results.append(play(service, body, kills))
        finally:
            service.close()
    (batches, status, calls), (again, status_again, _) = results
    assert calls > 63
    assert again == batches
    assert status_again == status


class Against(RuleBasedStateMachine):
    """RaaS and a trainer that lease, renew, push, push twice, push too late, fail, train, repeat and save,
    against a real dataflow that is killed now and then, and a model of what it must know."""

    folder = model = body = None

    @initialize()
    def start(self):
        self.service = RealDataflow(self.model, tempfile.mkdtemp(dir=self.folder))
        self.service.register_trainer()
        self.service.announce(0)
        self.version, self.updates, self.released = 0, 0, 0
        self.held, self.ended = {}, {}
        self.serves = {}
        for raas in ("r0", "r1"):
            self.register(raas)
        self.served, self.current = {}, None
        self.bodies = {}

    def teardown(self):
        if hasattr(self, "service"):
            self.service.close()

    def register(self, raas):
        self.service.register_raas(raas)
        self.serves[raas] = self.version
        self.held = {task: holder for task, holder in self.held.items() if holder[0] != raas}

    def group(self, name, task, raas, **group):
        number = self.service.incarnations[raas]
        return type(self).body(name, task.prompt_id, raas, incarnation=number, **group)

    @rule(raas=st.sampled_from(["r0", "r1"]), free=st.integers(2, 12), follow=st.booleans())
    def lease(self, raas, free, follow):
        if follow:
            self.serves[raas] = self.version
        for task in self.service.lease(raas, free, self.serves[raas]):
            assert task.id not in self.held
            assert task.id not in self.ended
            self.held[task.id] = (raas, task, self.serves[raas])

    @rule(raas=st.sampled_from(["r0", "r1"]))
    def renew(self, raas):
        mine = [task for task, (holder, *_) in self.held.items() if holder == raas]
        notices = self.service.renew(raas, [*mine, "train-99999"], self.serves[raas])
        assert {lease.task for lease in notices.revoked} == {"train-99999"}

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def push(self, data):
        name = data.draw(st.sampled_from(sorted(self.held)))
        raas, task, version = self.held.pop(name)
        count = data.draw(st.sampled_from([task.group_size, task.group_size, 0]))
        rewards = data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=count, max_size=count))
        content = self.group(name, task, raas, rewards=rewards, version=version)
        status = self.service.push(content).status
        assert status in ("accepted", "rejected")
        self.ended[name] = (raas, status)
        self.bodies[name] = content

    @precondition(lambda self: self.bodies)
    @rule(data=st.data())
    def push_again(self, data):
        name = data.draw(st.sampled_from(sorted(self.bodies)))
        assert self.service.push(self.bodies[name]).status == "duplicate"

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def push_what_another_holds(self, data):
        name = data.draw(st.sampled_from(sorted(self.held)))
        raas, task, version = self.held[name]
        other = "r1" if raas == "r0" else "r0"
        content = self.group(name, task, other, version=version)
        with pytest.raises(Refused, match="now works on it"):
            self.service.push(content)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fail(self, data):
        name = data.draw(st.sampled_from(sorted(self.held)))
        raas, *_ = self.held.pop(name)
        self.service.fail(raas, name)

    @rule()
    def take_batch(self):
        content, batch = self.service.next_batch(self.version)
        if batch is None:
            assert self.current is None
            return
        assert batch.id == f"solver-{self.updates:06d}"
        assert self.served.setdefault(batch.id, content) == content
        self.current = batch

    @precondition(lambda self: self.current is not None)
    @rule(twice=st.booleans())
    def train(self, twice):
        self.version += 1
        self.updates += 1
        for _ in range(1 + twice):
            self.service.announce(self.version)
            self.service.acknowledge(self.current.id, self.version)
        self.current = None

    @rule(rounds=st.integers(1, 3))
    def run_for_a_while(self, rounds):
        for _ in range(rounds):
            self.lease("r0", 8, True)
            for name in [task for task, (raas, *_) in self.held.items() if raas == "r0"]:
                raas, task, version = self.held.pop(name)
                content = self.group(name, task, raas, version=version)
                self.ended[name] = (raas, self.service.push(content).status)
                self.bodies[name] = content
            self.take_batch()
            if self.current is not None:
                self.train(False)

    @rule()
    def save(self):
        self.released = self.updates
        self.service.release(self.updates)

    @rule()
    def trainer_returns(self):
        answer = self.service.register_trainer(0, self.released, self.updates + 1)
        assert (answer.updates, answer.highest_version) == (self.released, self.version)
        self.updates, self.current = self.released, None
        self.version += 1
        self.service.announce(self.version)

    @rule(raas=st.sampled_from(["r0", "r1"]))
    def raas_returns(self, raas):
        self.register(raas)

    @rule()
    def kill(self):
        before = facts(self.service.look("status"))
        self.service.restart()
        assert facts(self.service.look("status")) == before

    @invariant()
    def all_adds_up(self):
        if not hasattr(self, "service"):
            return
        balance = self.service.look("balance")
        assert balance["imbalances"] == []
        tasks, statuses = balance["tasks"], [status for _, status in self.ended.values()]
        assert tasks["running"] == len(self.held)
        assert tasks["accepted"] == statuses.count("accepted")
        assert tasks["rejected"] == statuses.count("rejected")


@pytest.mark.slow
def test_nothing_is_lost_by_a_real_dataflow(config, body, tmp_path):
    Against.folder, Against.body = tmp_path, staticmethod(body)
    Against.model = settings_of(
        config, run__steps=1000, run__max_staleness=3, run__lease_s=600.0, checkpoint__every=500
    )
    checks = settings(
        max_examples=10,
        stateful_step_count=25,
        phases=[Phase.generate],  # an example that is shrunk starts hundreds of processes
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Against, settings=checks)
