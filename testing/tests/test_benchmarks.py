"""Benchmarks of components: what is counted, and the work of each kind."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import UserError
from astraflow_core.types import Prompt
from astraflow_testing.benchmarks import __main__ as program
from astraflow_testing.benchmarks import components, data_policies, pairs


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "SHORT_S", 0.0)


def request(kind: str, use: str, **more: Any) -> dict[str, Any]:
    empty = {
        "keys": {},
        "against": "",
        "against_keys": {},
        "pairs": 3,
        "tasks": [],
        "source": "",
        "model": "",
    }
    return {"kind": kind, "use": use, **empty, **more}


def measured(tmp_path: Path, *asked: str, **more: Any) -> dict[str, Any]:
    with ExitStack() as ends:
        return program.run(request(*asked, **more), tmp_path, ends)


def test_ratios_are_of_pairs_and_neither_side_is_always_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    busy = [1.0, 2.0, 4.0]  # the machine, from pair to pair

    def sample(work: Any, count: int) -> tuple[float, float]:
        order.append(work(count))
        now = busy[(len(order) - 1) // 2 % 3]
        return (0.003 if order[-1] == "ours" else 0.002) * count * now, 0.01 * count * now

    monkeypatch.setattr(pairs, "_sample", sample)
    found = pairs.measure(lambda _: "ours", lambda _: "theirs", 6)
    cpu, wall = found["cpu"], found["wall"]
    assert [cpu["ratio"], cpu["low"], cpu["high"]] == pytest.approx([1.5, 1.5, 1.5])
    assert [wall["ratio"], wall["low"], wall["high"]] == pytest.approx([1, 1, 1])
    assert (found["count"], found["pairs"]) == (2, 6)  # 0.04 s in the second try
    assert order[4:8] == ["ours", "theirs", "theirs", "ours"]


def test_a_sample_is_long_enough_and_not_too_long() -> None:
    counts: list[int] = []
    found = pairs.measure(counts.append, lambda count: None, 3)
    assert found["count"] == 1 << 20  # work that costs nothing ends somewhere
    compared = pairs.compared([0.3, 0.2, 0.4], [0.1, 0.1, 0.1], 100)
    assert (compared["us"], compared["against_us"]) == (pytest.approx(3000), pytest.approx(1000))
    assert (compared["low"], compared["ratio"], compared["high"]) == pytest.approx((2.5, 3, 3.5))


@pytest.mark.parametrize(
    ("kind", "use", "more", "against"),
    [
        ("reward", "numeric", {}, "exact"),
        ("prompt_source", "digits", {"keys": {"digits": 2}}, "digits"),
        ("data_policy", "quarantine", {}, "solved_filter"),
        ("data_policy", "ordering", {"keys": {"by": "fifo"}, "against": "replay"}, "replay"),
        ("environment", "key_door", {"source": "game_levels"}, "binary_search"),
        ("transport", "shm", {"against": "shm"}, "shm"),
        ("workflow", "single_turn", {"keys": {"chat": True}}, "single_turn"),
    ],
)
def test_each_kind_is_measured(
    brief: None, tmp_path: Path, kind: str, use: str, more: dict[str, Any], against: str
) -> None:
    found = measured(tmp_path, kind, use, **more)
    assert (found["against"], found["unit"]) == (against, program.UNITS[kind])
    assert min(found[c][f] for c in ("cpu", "wall") for f in ("us", "against_us", "ratio")) > 0


@pytest.mark.slow
def test_an_algorithm_is_measured(brief: None, tmp_path: Path) -> None:
    found = measured(tmp_path, "algorithm", "ppo", against="gspo")
    assert found["wall"]["us"] > 0


def test_work_is_what_was_asked_for() -> None:
    told: list[str] = []

    class Policy:
        def admit(self, prompt: Any) -> bool:
            told.append("admit")
            return True

        def accept(self, group: Any) -> bool:
            told.append("accept")
            return True

    class Orders(Policy):
        def key(self, row: Any) -> float:
            told.append("key")
            return 0.0

    data_policies.work(Policy())(3)
    assert told == ["admit", "accept"] * 3
    told.clear()
    data_policies.work(Orders())(1)
    assert told == ["key"] * (3 * data_policies.BATCH)


def test_an_episode_of_a_workflow_is_played_as_often_as_asked(tmp_path: Path) -> None:
    seen: list[str] = []

    class Twice:
        async def run_episode(self, engines: Any, prompt: Prompt) -> None:
            solver = engines["solver"]
            for _ in range(2):
                said = await solver.generate(solver.render(prompt.data["prompt"]))
                seen.append(solver.completion(said).text)

    class Fails:
        async def run_episode(self, engines: Any, prompt: Prompt) -> None:
            raise KeyError("level")

    tasks = [Prompt("p", {"prompt": "1 + 1"})]
    components.workflow(Twice(), tasks)(3)
    assert len(seen) == 6 and all("is it" in text for text in seen)
    with pytest.raises(UserError, match="an episode raised KeyError: 'level'"):
        components.workflow(Fails(), tasks)(1)


def test_what_cannot_be_measured_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        UserError, match="no included data policy has the capabilities of 'three_zones'"
    ):
        measured(tmp_path / "scale", "data_policy", "three_zones")
    file = tmp_path / "request.json"
    file.write_text(json.dumps(request("reward", "nothing_of_this_name")))
    assert program.main(file, tmp_path / "result.json") == 2
    assert "nothing_of_this_name" in capsys.readouterr().out
    assert not (tmp_path / "result.json").exists()
