"""The calls of a RaaS against a dataflow with scripted replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from astraflow_core.errors import DeadlineExceeded, RaasRefused, Refused
from astraflow_wire import messages
from astraflow_wire.http.client import AsyncClient
from astraflow_wire.http.raas_client import ORIGIN, START, RaasClient

pytestmark = pytest.mark.timeout(20)

TASK = messages.Task(
    id="t-0",
    prompt_id="p",
    data={},
    group_size=1,
    sampling=messages.SamplingMessage(max_tokens=1),
    lease_s=1.0,
    deadline_s=1.0,
)
ANSWERS = {
    "register": messages.RaasRegistered(
        run="r", renew_s=0.5, notices=messages.Notices(pins={"a": 1}), incarnation=1
    ),
    "lease": messages.TasksLeased(tasks=[TASK], notices=messages.Notices(pins={"a": 2})),
    "renew": messages.LeasesRenewed(notices=messages.Notices(stop=True)),
    "groups": messages.GroupPushed(status="accepted"),
    "fail": messages.Done(),
    "leave": messages.Done(),
}


class Dataflow:
    """In place of the connection: answers by the last word of the path, or raises what is in ``raises``, once."""

    def __init__(self) -> None:
        self.raises: dict[str, list[Exception]] = {}
        self.calls: list[tuple[str, object, float]] = []

    async def post(
        self, path: str, body: object, expected: type, *, deadline_s: float, first_try_s: float = 0
    ) -> object:
        name = path.rsplit("/", 1)[1]
        self.calls.append((name, body, deadline_s))
        await asyncio.sleep(0)
        if errors := self.raises.get(name):
            raise errors.pop()
        answer = ANSWERS[name]
        assert isinstance(answer, expected)
        if isinstance(answer, messages.RaasRegistered):
            answer = replace(answer, incarnation=self.names.count("register"))
        return answer

    post_bytes = post

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.calls]


def spoken(
    flow: Dataflow, talk: Callable[[RaasClient], Awaitable[object]]
) -> tuple[object, list[messages.Notices]]:
    """The result of the call, and the notices that it received."""
    heard: list[messages.Notices] = []

    async def run() -> object:
        client: AsyncClient = flow  # type: ignore[assignment]
        return await talk(RaasClient(client, "mine", ["a"], 4, heard.append, deadline_s=7.0))

    return asyncio.run(run()), heard


def test_notices_of_every_reply_are_received() -> None:
    flow = Dataflow()

    async def talk(raas: RaasClient) -> object:
        await raas.register()
        tasks = await raas.lease(2, 1.5, {}, {"a": -1})
        await raas.renew(["t-0"], {"a": 0}, {"a": 0})
        return tasks, raas.renew_s

    (tasks, renew_s), heard = spoken(flow, talk)
    assert tasks == [TASK] and renew_s == 0.5
    assert [notices.pins for notices in heard] == [{"a": 1}, {"a": 2}, {}] and heard[-1].stop
    assert [(name, deadline) for name, _, deadline in flow.calls] == [
        ("register", 7.0), ("lease", 8.5), ("renew", 7.0),
    ]  # fmt: skip


def test_it_registers_once_again_however_many_calls_notice_a_restarted_dataflow() -> None:
    flow = Dataflow()

    async def talk(raas: RaasClient) -> object:
        await raas.register()
        flow.raises = {n: [Refused(404, "who is that?")] for n in ("lease", "renew")}
        answers = await asyncio.gather(raas.lease(2, 1.0, {}, {}), raas.renew([], {}, {}))
        return answers, await raas.lease(2, 1.0, {}, {})

    (answers, later), heard = spoken(flow, talk)
    assert answers == [[], None] and later == [TASK]
    assert flow.names.count("register") == 2
    assert [notices.pins for notices in heard] == [{"a": 1}, {"a": 1}, {"a": 2}]


def test_what_comes_too_late_is_no_error_and_what_is_refused_is() -> None:
    flow = Dataflow()
    flow.raises = {
        "groups": [Refused(400, "no such version"), Refused(409, "lost")],
        "fail": [Refused(409, "lost")],
    }

    async def talk(raas: RaasClient) -> object:
        assert await raas.push(b"late") is None
        with pytest.raises(Refused, match="no such version"):
            await raas.push(b"wrong")
        await raas.fail("t-0", "late")
        return await raas.push(b"good")

    pushed, _ = spoken(flow, talk)
    assert pushed == messages.GroupPushed(status="accepted")


def test_other_refusals_and_silence_end_the_call() -> None:
    flow = Dataflow()
    flow.raises = {
        "lease": [Refused(400, "which policy?")],
        "renew": [DeadlineExceeded("http://there", "no answer", 7.0)],
    }

    async def talk(raas: RaasClient) -> object:
        with pytest.raises(Refused, match="which policy"):
            await raas.lease(1, 1.0, {}, {})
        with pytest.raises(DeadlineExceeded):
            await raas.renew([], {}, {})
        await raas.leave("stopped", 2.0)
        return None

    spoken(flow, talk)
    assert flow.calls[-1][2] == 2.0 and "register" not in flow.names


def test_every_call_carries_the_number_of_the_last_registration() -> None:
    flow = Dataflow()

    async def talk(raas: RaasClient) -> None:
        await raas.register()
        await raas.lease(1, 1.0, {}, {})
        flow.raises = {"renew": [Refused(404, "who is that?")]}
        await raas.renew([], {}, {})
        await raas.renew([], {}, {})
        await raas.fail("t-0", "broken")
        await raas.leave("stopped")
        assert raas.incarnation == 2

    spoken(flow, talk)
    numbers = [(name, getattr(body, "incarnation", None)) for name, body, _ in flow.calls]
    assert numbers == [
        ("register", None), ("lease", 1), ("renew", 1), ("register", None), ("renew", 2),
        ("fail", 2), ("leave", 2),
    ]  # fmt: skip


def test_one_conflict_may_be_the_end_of_the_run_and_two_are_another_process() -> None:
    """The call that makes a run fail is answered by 409, and the reply to the next one requests a stop."""
    flow = Dataflow()
    taken = [Refused(409, "superseded") for _ in range(3)]

    async def talk(raas: RaasClient) -> None:
        await raas.register()
        flow.raises = {"lease": taken[:1]}
        assert await raas.lease(1, 1.0, {}, {}) == []
        assert await raas.lease(1, 1.0, {}, {}) == [TASK]
        flow.raises = {"lease": taken[1:]}
        assert await raas.lease(1, 1.0, {}, {}) == []
        with pytest.raises(RaasRefused, match="superseded"):
            await raas.lease(1, 1.0, {}, {})

    spoken(flow, talk)
    assert flow.names.count("register") == 1, (
        "a process that is superseded does not fight for its name"
    )


def test_a_raas_that_is_not_taken_in_asks_once() -> None:
    flow = Dataflow()
    flow.raises = {"register": [Refused(409, "the name 'mine' is taken")]}

    async def talk(raas: RaasClient) -> None:
        with pytest.raises(RaasRefused, match="is taken") as error:
            await raas.register()
        assert error.value.exit_code == 3

    spoken(flow, talk)
    assert flow.names == ["register"]


def test_a_registration_that_is_made_again_is_known_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def talk(raas: RaasClient) -> None:
        await raas.register()
        await raas.register()

    def told() -> list[tuple[str, int]]:
        flow = Dataflow()
        spoken(flow, talk)
        return [(body.origin, body.start) for _, body, _ in flow.calls]

    (one, again), (other, _) = told(), told()
    assert one == again != other and one[0] and one[1] == 0
    monkeypatch.setenv(ORIGIN, "of-a-launcher")
    monkeypatch.setenv(START, "3")
    assert told() == [("of-a-launcher", 3)] * 2
