"""One message that its sender got wrong costs that sender a 4xx and nobody else anything."""

from __future__ import annotations

import pytest
from hostile import Attacked, attack, attack_each_field

from astraflow_runtime.dataflow.fleet.names import name_holder
from astraflow_runtime.dataflow.http import service

PATHS = (
    "/v1/groups", "/v1/tasks/lease", "/v1/tasks/renew", "/v1/tasks/fail", "/v1/raas/register",
    "/v1/raas/leave", "/v1/raas/add", "/v1/raas/drain", "/v1/trainers/register", "/v1/trainers/failed",
    "/v1/versions", "/v1/batches/next", "/v1/batches/ack", "/v1/batches/release", "/v1/stop",
    "/v1/data_policies/swap", "/v1/access/revoke", "/v1/versions/recover", "/v1/versions/offer",
    "/v1/tasks/drafts",
)  # fmt: skip
ENDS = ("/v1/stop", "/v1/trainers/failed")
"""Messages that are there to end the run."""
ABOUT = pytest.mark.turns(
    "runtime/src/astraflow_runtime/dataflow/**/*.py",
    "runtime/tests/dataflow/*.py",
    "libs/wire/src/**/*.py",
)


@pytest.fixture
def attacked(bench, config, body, tmp_path, monkeypatch):
    monkeypatch.setattr(service, "LONGEST_POLL_S", 0.001)

    def looked(
        *asked,
    ):  # no test here waits until the holder of a name counts as silent
        name_holder(*asked)

    monkeypatch.setattr(service, "name_holder", looked)
    made = Attacked(bench, config, body, tmp_path)
    yield made
    made.bench.state.close()


def test_every_post_is_attacked(attacked):
    assert sorted(attacked.paths()) == sorted(PATHS)


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_each_field_with_each_hostile_value(path, attacked):
    attack_each_field(attacked, path, may_end=path in ENDS)


@pytest.mark.parametrize("path", PATHS)
def test_several_fields_and_mutated_bytes(path, attacked):
    attack(attacked, [path], 100, 1, may_end=path in ENDS)


@pytest.mark.slow
def test_hostile_messages_of_all_kinds(attacked):
    assert attack(attacked, [path for path in PATHS if path not in ENDS], 1000, 1) > 25


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=ABOUT) for seed in (1, 2, 3))])
def test_many_hostile_messages_of_all_kinds(seed, attacked):
    attack(attacked, [path for path in PATHS if path not in ENDS], 5000, seed)
