from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import durations
import pytest
import scheduling as scheduling_module
import tiers
import turns
from scheduling import HEAVY_FORKS, ByPackage, LongestFirst, longest_first


class Worker:
    """What a scheduler knows of a worker that has collected its tests."""

    shutting_down = False

    def __init__(self) -> None:
        self.given: list[int] = []

    def send_runtest_some(self, indexes: list[int]) -> None:
        self.given += indexes

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.mark.parametrize(
    ("test", "scope"),
    [
        ("plugins/trainers/fsdp/tests/test_ranks.py::test_one[a::b]", "plugins/trainers/fsdp"),
        ("plugins/trainers/fsdp/tests/test_conformance.py::TestIt::test_two", "plugins/trainers/fsdp"),
        ("contrib/prompts/tests/test_jsonl.py::test_it", "contrib/prompts"),
        ("runtime/tests/raas/test_host.py::test_it", "runtime/tests/raas/test_host.py"),
        ("tests/test_run.py::test_it", "tests/test_run.py"),
        ("tests/preflight/test_preflight.py::test_it", "tests/preflight/test_preflight.py"),
        ("tests/preflight/test_torch.py::test_it", HEAVY_FORKS),
        ("contrib/commands/eval/tests/test_runs.py::test_it", HEAVY_FORKS),
    ],
)  # fmt: skip
def test_tests_that_share_what_they_made_stay_together_and_others_by_file(
    test: str, scope: str
) -> None:
    scheduler = ByPackage.__new__(ByPackage)  # one that was set up needs workers
    assert scheduler._split_scope(test) == scope


TESTS = ["a.py::one", "b.py::one", "b.py::two", "c.py::one", "d.py::one", "d.py::two"]
HEAVY_TESTS = ["tests/a.py::one", "p/tests/b.py::one", "tests/c.py::one", "p/tests/d.py::one"]


@pytest.mark.parametrize(
    ("scheduling", "markers", "tests", "order"),
    [
        (LongestFirst, tiers.LIGHT, TESTS, [4, 5, 1, 2, 0, 3]),
        (LongestFirst, "", TESTS, [4, 5, 1, 2, 0, 3]),
        (ByPackage, tiers.SLOW, HEAVY_TESTS, [1, 3, 2, 0]),
        (ByPackage, tiers.BACKEND, HEAVY_TESTS, [0, 1, 3, 2]),
    ],
)
def test_what_is_recorded_as_longest_is_dealt_out_first(
    scheduling: type[LongestFirst],
    markers: str,
    tests: list[str],
    order: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = {
        "files": {"b.py": 2.0, "d.py": 9.0, "gone.py": 20.0},
        "tests": {},
        "slow": {"p/tests/b.py": 3.0, "p/tests/d.py": 3.0, "tests/c.py": 5.0},
        "backend": {"tests/a.py": 2.5},
    }
    monkeypatch.setattr(durations, "read", lambda: record)
    monkeypatch.setattr(scheduling_module, "turn", lambda shares: 0)
    options = SimpleNamespace(loadscopereorder=False, markexpr=markers)
    config = SimpleNamespace(option=options, getvalue=lambda name: ["popen"])
    scheduler, worker = scheduling(config), Worker()

    scheduler.add_node(worker)
    scheduler.add_node_collection(worker, tests)
    scheduler.schedule()
    while len(worker.given) < len(tests):
        for index in list(worker.given):
            scheduler.mark_test_complete(worker, index)

    assert worker.given == order


def test_what_has_no_record_begins_elsewhere_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    for which in range(3):
        monkeypatch.setattr(scheduling_module, "turn", lambda shares, which=which: which % shares)
        orders.append(longest_first(TESTS, {"b.py": 2.0}, lambda test: test.partition("::")[0]))
    assert orders == [
        ["b.py", "a.py", "c.py", "d.py"],
        ["b.py", "c.py", "d.py", "a.py"],
        ["b.py", "d.py", "a.py", "c.py"],
    ]


def test_a_turn_is_of_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "ROOT", tmp_path)
    file = tmp_path / "core" / "src" / "package" / "module.py"
    file.parent.mkdir(parents=True)
    found = []
    for text in ("a = 1", "a = 2", "a = 1"):
        file.write_text(text, encoding="utf-8")
        turns.turn.cache_clear()
        found.append(turns.turn(10**6))
    turns.turn.cache_clear()
    assert found[0] == found[2] != found[1]
