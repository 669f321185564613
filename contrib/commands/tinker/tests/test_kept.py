"""What is on disk of a running model, and what a server that starts makes of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from tinker_cases import in_loop, service

from astraflow_contrib_tinker.recovery import recover
from astraflow_contrib_tinker.routes.numbered import NumberedRequest, put_numbered
from astraflow_contrib_tinker.wire.results import GradientResult, Result
from astraflow_contrib_tinker.work import kept as kept_module
from astraflow_contrib_tinker.work.futures import FailedRequest, Promises
from astraflow_contrib_tinker.work.kept import KeptModel
from astraflow_contrib_tinker.work.ordering import Ordered, digest_of
from astraflow_core.errors import Refused, UserError

STEP = "optim_step.json"


def numbers(folder: Path) -> list[tuple[int, str, bool]]:
    return [(r.number, r.kind, r.failed is not None) for r in KeptModel(folder, 1).read()]


def test_requests_since_the_state_are_kept(tmp_path: Path) -> None:
    kept = KeptModel(tmp_path, 2)
    kept.create({"rank": 0})
    for number in (2, 1, 3):
        kept.write(number, STEP, b"%d" % number)
    kept.write(2, STEP, b"other")  # a repeated one
    kept.fail(3, FailedRequest("wrong", "user"))
    kept.fail(4, FailedRequest("never came", "user"))
    expected = [(1, STEP, False), (2, STEP, False), (3, STEP, True), (4, "failed", True)]
    assert numbers(tmp_path) == expected
    sent = KeptModel(tmp_path, 2).read()[1].file
    assert sent is not None and sent.read_bytes() == b"2"
    (kept.begin_state(3) / "weights").touch()  # the server ends before this one is whole
    assert numbers(tmp_path) == expected and not list(tmp_path.glob("state-*"))
    kept.finish_state(kept.begin_state(3), 7, {})
    kept.write(2, STEP, b"2")  # it came to disk after what it made
    assert numbers(tmp_path) == expected[2:]


def test_results_are_as_they_were(tmp_path: Path) -> None:
    kept = KeptModel(tmp_path, 2)
    kept.create({})
    logprobs = [np.array([[-1.5, 2], [0, -np.inf]], np.float32), np.zeros(0, np.float32)]
    told: dict[str, object] = {"type": "optim_step", "metrics": {"lr": 0.1}}
    outcomes: list[Result | FailedRequest] = [
        GradientResult(logprobs, {"loss:sum": 1.5}),
        told,
        FailedRequest("no", "server"),
    ]
    results = {n: (digest_of(b"%d" % n), outcome) for n, outcome in enumerate(outcomes, 1)}
    kept.finish_state(kept.begin_state(4), 7, results)
    again = KeptModel(tmp_path, 2)
    again.read()
    assert (again.next, again.updates) == (4, 7)
    digest, gradient = again.results[1]
    assert digest == digest_of(b"1") and isinstance(gradient, GradientResult)
    assert gradient.metrics == {"loss:sum": 1.5}
    for got, wanted in zip(gradient.logprobs, logprobs, strict=True):
        np.testing.assert_array_equal(got, wanted, strict=True)
    assert [again.results[n] for n in (2, 3)] == [results[n] for n in (2, 3)]


def test_a_repeated_request_gets_its_result_from_the_state() -> None:
    async def never() -> Result:
        raise AssertionError("it was worked on already")

    async def scenario() -> None:
        promises = Promises()
        order = Ordered(promises, "s", name="a" * 16 + ":train:0")
        order.resume(9, {8: (digest_of(b"8"), {"number": 8})})
        order.start()
        assert order.put(8, digest_of(b"8"), never).outcome == {"number": 8}
        with pytest.raises(Refused, match="another request"):
            order.put(8, digest_of(b"other"), never)
        with pytest.raises(Refused, match="the next request of this model has 9"):
            order.put(7, digest_of(b"7"), never)
        with pytest.raises(Refused, match="continue from its last save_state") as gone:
            await promises.fetch("a" * 16 + ":train:0:7", 0)
        assert gone.value.status == 404
        with pytest.raises(Refused) as sample:
            await promises.fetch(
                "0123456789ab-7", 0
            )  # of a server before: the client samples again
        assert sample.value.status == 410

    asyncio.run(scenario())


def test_what_was_kept_of_another_model_or_is_damaged_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = service(tmp_path, keep_every=2)
        session = first.begin({"a": "b"})
        file = first.running / session.id / "session.json"
        text = file.read_text(encoding="utf-8")
        again = service(tmp_path, keep_every=2)
        assert recover(again) == [] and again.sessions[session.id].metadata == {"a": "b"}
        for damaged, said in ((text.replace("test/tiny", "other"), "model 'other'"), ("{", "read")):
            file.write_text(damaged, encoding="utf-8")
            with pytest.raises(UserError, match=said):
                recover(service(tmp_path, keep_every=2))
        first.end(session)
        await first.close()
        assert list(first.running.iterdir()) == []

    in_loop(scenario())


def test_requests_that_no_step_ends_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_module, "MOST_KEPT", 2)

    async def scenario() -> None:
        found = service(tmp_path, keep_every=2)
        model = found.create_model(found.begin({}), 0, 0, None, {})
        made = []
        for number in (1, 2, 3):
            body = b'{"model_id": "%s", "seq_id": %d}' % (model.id.encode(), number)
            made.append(await put_numbered(found, NumberedRequest("optim_step", body)))
        model.order.start()
        said = [(await found.promises.fetch(each.id)).outcome for each in made]
        assert all(isinstance(each, FailedRequest) for each in said)
        assert ["make one more often" in str(each) for each in said] == [False, False, True]
        requests = found.running / model.session / "0" / "requests"
        assert {file.stem for file in requests.glob("*.json")} == {
            f"{n:09d}.optim_step" for n in (1, 2)
        }
        await found.close()

    in_loop(scenario())
