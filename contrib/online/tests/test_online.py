"""Episodes that a live service opens, rewards, abandons or forgets."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from visited_slots import Service

from astraflow_contrib_online.config import OnlineConfig
from astraflow_contrib_online.workflow import OnlineWorkflow
from astraflow_core.errors import PreflightError
from astraflow_core.types import ComponentContext, Prompt, RunInfo, Sampling, Trajectory
from astraflow_testing.scripted_policies import FailedAnswer, ScriptedPolicies

Play = Callable[[Service, list["asyncio.Task[Any]"]], Awaitable[None]]


def context(folder: Path, policies: tuple[str, ...] = ("p",)) -> ComponentContext:
    run = RunInfo("r", 0, 1, 1, policies, folder)
    return ComponentContext(run, "raas", "", 0, folder / "state" / "raas-0" / "workflow")


def played(
    folder: Path,
    play: Play,
    slots: int = 1,
    says: Any = lambda *_: "a key",
    policies: tuple[str, ...] = ("p",),
    **keys: Any,
) -> list[Any]:
    """What ``slots`` leased slots return, or raise, while ``play`` uses them."""

    async def run() -> list[Any]:
        scripted = ScriptedPolicies(policies, says=says, sampling=Sampling(max_tokens=60))
        workflow = OnlineWorkflow(OnlineConfig(**keys), context(folder, policies))
        leased = [
            asyncio.create_task(workflow.run_episode(scripted.engines(), Prompt(f"{n}", {})))
            for n in range(slots)
        ]
        while not list((folder / "online").glob("*.json")):
            await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as client:
            await play(Service(client, folder), leased)
        return await asyncio.gather(*leased, return_exceptions=True)

    return asyncio.run(run())


def test_an_episode_is_opened_played_and_rewarded(tmp_path: Path) -> None:
    async def play(service: Service, leased: Any) -> None:
        episode = await service.opened()
        assert episode["trained"] and episode["models"] == ["p"]
        assert episode["base_url"] == f"{service.url}/v1"
        for said in (["a door"], ["a door", "a key", "sure?"]):
            status, told = await service.ask(episode, "p", *said)
            assert status == 200 and told["choices"][0]["message"]["content"] == "a key"
        turns = [{"id": told["id"], "reward": 0.5, "state": "sure"}]
        early = await service.reward(episode, reward=0.25, done=False, turns=turns)
        assert early == (
            200,
            {"id": episode["id"], "trained": True, "rewards": {"p": 0.25}, "done": False},
        )
        status, told = await service.reward(episode, reward=0.75)
        assert status == 200 and told["done"]
        await leased[0]
        # The client did not get the reply and retries; another reward has no effect.
        assert await service.reward(episode, reward=0.75) == (200, told)
        status, refused = await service.reward(episode, reward=0.5)
        assert status == 409 and "it was rewarded before" in refused["error"]["message"]
        status, refused = await service.ask(episode, "p", "more")
        assert status == 401 and refused["error"]["code"] == "invalid_api_key"
        assert (await service.call("GET", "episodes"))[1]["rewarded"] == 1

    (trajectory,) = played(tmp_path, play)
    assert isinstance(trajectory, Trajectory), trajectory
    sequence = trajectory.sequences[-1]
    last = len(sequence.tokens) - 1
    assert (sequence.turn_rewards, sequence.turn_states) == ({last: 0.5}, {last: "sure"})
    assert trajectory.rewards == {"p": 0.75}
    masks = [each.loss_mask for each in trajectory.sequences]
    # Two answers of five bytes and an end; the version rises within each, as the engine says.
    assert sum(int(mask.sum()) for mask in masks) == 12
    versions = [each.versions[each.loss_mask] for each in trajectory.sequences]
    assert sorted({each for some in versions for each in some.tolist()}) == [1, 2, 3]
    assert [each.text for each in trajectory.completions] == ["a key", "a key"]


def test_the_token_is_private_and_an_episodes_key_opens_nothing(tmp_path: Path) -> None:
    async def play(service: Service, leased: Any) -> None:
        episode = await service.opened()
        for token in ("", "wrong", episode["api_key"]):
            for method, path in (
                ("POST", "episodes"), ("GET", "episodes"), ("DELETE", f"episodes/{episode['id']}"),
                ("POST", f"episodes/{episode['id']}/reward"),
            ):  # fmt: skip
                status, told, _ = await service.call(method, path, {"reward": 1}, token)
                assert status == 401 and "RUN/online/token" in told["error"]["message"]
        status, _ = await service.ask({"api_key": service.token}, "p", "a door")
        assert status == 401
        assert (await service.call("DELETE", f"episodes/{episode['id']}"))[0] == 204

    assert played(tmp_path, play) == [None]
    for name in ("token", "raas-0.json"):
        assert stat.S_IMODE((tmp_path / "online" / name).stat().st_mode) == 0o600
    assert {file.name for file in (tmp_path / "online").iterdir()} == {"token", "raas-0.json"}
    said = json.loads((tmp_path / "online" / "raas-0.json").read_text())
    assert Path(said["token"]).read_text().strip() not in str(said)


def test_without_a_free_slot_a_service_gets_a_retry_after(tmp_path: Path) -> None:
    async def play(service: Service, leased: Any) -> None:
        first = await service.opened()
        status, told, headers = await service.call("POST", "episodes")
        assert status == 503 and headers["retry-after"] == "1"
        assert told["error"]["code"] == "no_free_slot"
        await service.call("DELETE", f"episodes/{first['id']}")

    assert played(tmp_path, play) == [None]


def test_further_episodes_may_be_answered_and_not_trained(tmp_path: Path) -> None:
    async def play(service: Service, leased: Any) -> None:
        first, guest = await service.opened(), await service.opened()
        assert (first["trained"], guest["trained"]) == (True, False)
        assert (await service.call("POST", "episodes"))[0] == 503
        for each in (guest, first):
            assert (await service.ask(each, "p", "a door"))[0] == 200
        assert (await service.reward(guest, reward=0))[1]["trained"] is False
        assert not leased[0].done()
        await service.reward(first, rewards={"p": 1})
        await leased[0]
        last = await service.opened()
        assert last["trained"] is False
        assert (await service.call("DELETE", f"episodes/{last['id']}"))[0] == 204

    (trajectory,) = played(tmp_path, play, max_untrained=1)
    assert trajectory.rewards == {"p": 1.0} and len(trajectory.sequences) == 1


def test_a_slot_that_no_one_opens_is_rejected(tmp_path: Path) -> None:
    async def play(service: Service, leased: Any) -> None:
        await leased[0]
        assert (await service.call("POST", "episodes"))[0] == 503

    assert played(tmp_path, play, wait_s=0.05) == [None]


@pytest.mark.parametrize(
    ("keys", "why"),
    [({"idle_s": 0.05}, "idle_s"), ({"deadline_s": 0.05}, "deadline_s")],
)
def test_an_episode_that_no_one_rewards_is_rejected(
    tmp_path: Path, keys: dict[str, float], why: str
) -> None:
    async def play(service: Service, leased: Any) -> None:
        episode = await service.opened()
        assert (await service.ask(episode, "p", "a door"))[0] in (200, 401)
        assert await leased[0] is None
        status, told = await service.reward(episode, reward=1)
        assert status == 409 and why in told["error"]["message"]

    assert played(tmp_path, play, **keys) == [None]


def test_a_reward_that_came_stands_when_the_client_goes_away(tmp_path: Path) -> None:
    async def play(service: Service, leased: Any) -> None:
        episode = await service.opened()
        await service.ask(episode, "p", "a door")
        await service.reward(episode, reward=0.5, done=False)

    (trajectory,) = played(tmp_path, play, idle_s=2)
    assert trajectory.rewards == {"p": 0.5}


def test_the_failure_of_an_engine_is_that_of_the_episode(tmp_path: Path) -> None:
    async def play(service: Service, leased: Any) -> None:
        episode = await service.opened()
        assert (await service.ask(episode, "p", "a door"))[0] == 503
        await asyncio.wait(leased)
        status, told = await service.reward(episode, reward=1)
        assert status == 409 and "an engine failed" in told["error"]["message"]

    (error,) = played(tmp_path, play, says=lambda *_: FailedAnswer("out of memory"))
    assert "out of memory" in str(error)


def test_what_the_run_takes_back_says_so(tmp_path: Path) -> None:
    async def play(service: Service, leased: Any) -> None:
        episode = await service.opened()
        leased[0].cancel()
        await asyncio.wait(leased)
        status, told = await service.reward(episode, reward=1)
        assert status == 409 and "the run took its slot back" in told["error"]["message"]
        free = (await service.call("GET", "episodes"))[1]
        assert free["free"] == free["open"] == 0 and free["ended"] == 1

    (cancelled,) = played(tmp_path, play)
    assert isinstance(cancelled, asyncio.CancelledError)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "give one of reward and rewards"),
        ({"reward": 1, "rewards": {"p": 1}}, 400, "give one of"),
        ({"reward": "good"}, 400, "reward: Expected `float | null`, got `str`"),
        ({"rewards": {"q": 1}}, 400, "'q', which is not a policy that it sampled from"),
        ({"rewards": {"p": 1}}, 400, "rewards has none for v"),
        ({"rewards": {}}, 400, "expected a finite number"),
        ({"points": 1}, 400, "points"),
        (
            {"rewards": {"p": 1, "v": 0}, "turns": [{"id": "x"}]},
            400,
            "turn 'x', choice 0, which this episode does not",
        ),
    ],
)
def test_a_bad_reward_says_what_is_expected(
    tmp_path: Path, body: Any, status: int, says: str
) -> None:
    async def play(service: Service, leased: Any) -> None:
        episode = await service.opened()
        early, told = await service.reward(episode, reward=1)
        assert early == 409 and "nothing was sampled" in told["error"]["message"]
        for model in ("p", "v"):
            await service.ask(episode, model, "a door")
        found, told = await service.reward(episode, **body)
        assert (found, told["error"]["type"]) == (status, "invalid_request_error")
        assert says in told["error"]["message"]
        assert (await service.reward(episode, rewards={"p": 1, "v": 0}))[0] == 200

    (trajectory,) = played(tmp_path, play, policies=("p", "v"))
    assert trajectory.rewards == {"p": 1.0, "v": 0.0}


def test_a_raas_that_was_restarted_knows_no_earlier_episode(tmp_path: Path) -> None:
    old: list[Any] = []

    async def before(service: Service, leased: Any) -> None:
        old.extend([await service.opened(), service.token])
        leased[0].cancel()

    async def after(service: Service, leased: Any) -> None:
        episode, token = old
        assert service.token == token  # a service need not be restarted with another address
        for method, path in (("POST", "/reward"), ("DELETE", "")):
            status, told, _ = await service.call(
                method, f"episodes/{episode['id']}{path}", {"reward": 1}
            )
            assert status == 404 and "its RaaS was restarted" in told["error"]["message"]
        assert (await service.ask(episode, "p", "a door"))[0] == 401

    played(tmp_path, before)
    for file in (tmp_path / "online").glob("*.json"):
        file.unlink()
    played(tmp_path, after, wait_s=1)


def test_the_token_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from astraflow_contrib_online.access import token_of

    with pytest.raises(PreflightError, match=r"MY_TOKEN \(\[workflow\] token_env\) is not set"):
        token_of(tmp_path, "MY_TOKEN")
    monkeypatch.setenv("MY_TOKEN", "secret")
    assert token_of(tmp_path, "MY_TOKEN") == "secret"
    assert token_of(tmp_path, None) == token_of(tmp_path, None) != "secret"
