"""Which experts, of those that an engine returned, belong to the tokens of a sequence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from local_engine import LocalEngine, replicas_of
from played import fixed, once, rolled_out

from astraflow_core.errors import PluginError
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling, Trajectory
from astraflow_engine_host import protocol
from astraflow_runtime.raas.episodes.dry_call import MadeUp
from astraflow_runtime.raas.episodes.episodes import TaskFailed
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle
from astraflow_runtime.raas.episodes.routing_log import RoutingLog
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_wire.experts.layers import ExpertLayers

MODEL = ExpertLayers(layers=2, top_k=2, experts=200)
NONE = [255, 255, 255, 255]


def routed(tokens, mark):
    """Of each token its place, and whose they are."""
    found = np.full((tokens, 2, 2), mark, np.uint8)
    found[:, 0, 0] = np.arange(tokens)
    return found


def call(log, prompt, sampled, mark):
    arrays = (np.array(sampled, np.int32), np.zeros(len(sampled), np.float32))
    versions = np.zeros(len(sampled), np.int32)
    given = routed(len(prompt) + len(sampled) - 1, mark)
    log.add(np.array(prompt, np.int32), GenerateResult("r", *arrays, versions, "stop", given))


def marks(log, *tokens):
    found = log.of(np.array(tokens, np.int32))
    if found is None:
        return None
    for place, each in enumerate(found):
        assert each.ravel().tolist() == NONE or each[0, 0] == place
    return found[:, 1, 1].tolist()


def test_a_token_has_the_experts_with_which_it_was_read_first():
    log = RoutingLog("solver", MODEL)
    call(log, [1, 2], [3, 4], 7)
    call(log, [1, 2, 3, 4, 9], [5], 8)
    assert marks(log, 1, 2, 3, 4) == [7, 7, 7, 255]
    assert marks(log, 1, 2, 3, 4, 9, 5) == [7, 7, 7, 8, 8, 255]
    assert marks(log, 1, 2, 3, 4, 9, 5, 6) == [7, 7, 7, 8, 8, 255, 255]


def test_a_sequence_has_those_of_its_own_request():
    log = RoutingLog("solver", MODEL)
    call(log, [1, 2], [3, 4, 5], 7)
    call(log, [1, 2], [3, 4], 8)
    call(log, [1, 2], [6], 9)
    assert marks(log, 1, 2, 3, 4) == [8, 8, 8, 255]
    assert marks(log, 1, 2, 3, 4, 5) == [7, 7, 7, 7, 255]
    assert marks(log, 1, 2, 6) == [9, 9, 255]
    assert marks(log, 1, 2, 8) is None
    assert marks(log, 1, 2) is None


def test_a_sequence_that_was_cut_at_a_stop_keeps_them():
    log = RoutingLog("solver", MODEL)
    call(log, [1, 2], [3, 4, 5], 7)
    assert marks(log, 1, 2, 3) == [7, 7, 255]


@pytest.mark.parametrize(
    ("given", "found"),
    [(None, "gave nothing"), (routed(3, 1), r"gave uint8 \[3, 2, 2\]"),
     (routed(4, 1).astype(np.uint16), r"gave uint16 \[4, 2, 2\]")],
)  # fmt: skip
def test_an_engine_that_returns_another_shape_is_named(given, found):
    one = np.zeros(3, np.int32)
    result = GenerateResult("r", one, one.astype(np.float32), one, "stop", given)
    with pytest.raises(PluginError, match=rf"policy 'solver' {found}.*expected uint8 \[4, 2, 2\]"):
        RoutingLog("solver", MODEL).add(np.array([1, 2], np.int32), result)


class Routing(LocalEngine):
    """Returns the experts of tokens where it is asked for them."""

    asked = ()

    async def generate(self, request):
        self.asked = (*self.asked, request.routing)
        result = await super().generate(request)
        tokens = len(request.prompt) + len(result.tokens) - 1
        return replace(result, routed_experts=routed(tokens, 7)) if request.routing else result


def recording(model, experts=MODEL):
    engine = Routing()
    return engine, PolicyHandle(replicas_of(engine), FolderTokenizer(model), experts=experts)


def test_sequences_of_a_task_get_them_and_those_of_an_evaluation_do_not(model):
    engine, handle = recording(model)
    group = rolled_out(handle, once, fixed)
    assert all(engine.asked) and group.routing is not None
    for start, end in zip(group.offsets[:-1], group.offsets[1:], strict=True):
        ids = np.frombuffer(group.routing.between(start, end), np.uint8).reshape(-1, 2, 2)
        assert (ids[:-1, 1, 1] == 7).all() and (ids[-1] == 255).all()
    engine, handle = recording(model)
    assert rolled_out(handle, once, fixed, eval_set="held_out").routing is None
    assert not any(engine.asked)


def test_no_engine_is_asked_for_experts_by_default(model):
    engine, handle = recording(model, None)
    assert rolled_out(handle, once, fixed).routing is None and not any(engine.asked)


def test_a_workflow_may_give_them_if_they_fit(model):
    def of(tokens):
        async def workflow(engines, prompt):
            done = await once(engines, prompt)
            first = done.sequences[0]
            given = replace(first, routed_experts=routed(tokens or len(first.tokens), 3))
            return Trajectory((given,), done.completions)

        return workflow

    _, handle = recording(model)
    group = rolled_out(handle, of(0), fixed)
    assert (np.frombuffer(group.routing.between(0, group.offsets[1]), np.uint8)[3::4] == 3).all()
    with pytest.raises(TaskFailed, match=r"routed_experts are uint8 \[1, 2, 2\]; expected uint8 "):
        rolled_out(handle, of(1), fixed)
    _, plain = recording(model, None)
    with pytest.raises(TaskFailed, match="does not record; set router_replay"):
        rolled_out(plain, of(0), fixed)


def test_the_dry_call_makes_them_up_too(model):
    engine = MadeUp("solver", model, (1,), "torch", scores=True)
    engine.experts = MODEL
    handle = PolicyHandle(engine, FolderTokenizer(model), experts=MODEL)
    assert rolled_out(handle, once, fixed).routing is not None


def test_they_pass_between_engine_host_and_raas_where_they_are_asked_for():
    sampling = Sampling(3)
    one = np.arange(3, dtype=np.int32)
    asked = [GenerateRequest(n, one, sampling, routing=n == "b") for n in "abc"]
    header, *buffers = (bytes(part) for part in protocol.encode_requests(asked))
    found = protocol.decode_requests(protocol.decode_to_host(header), buffers)
    assert [request.routing for request in found] == [False, True, False]
    results = [
        GenerateResult(n, one, one.astype(np.float32), one, "stop", given)
        for n, given in (("a", None), ("b", routed(5, 1)), ("c", routed(4, 2).astype(np.uint16)))
    ]
    header, *buffers = (bytes(part) for part in protocol.encode_results(results, {}))
    decoded = protocol.decode_results(protocol.decode_from_host(header), buffers)
    assert decoded[0].routed_experts is None
    for result, expected in zip(decoded[1:], results[1:], strict=True):
        assert result.routed_experts.dtype == expected.routed_experts.dtype
        assert np.array_equal(result.routed_experts, expected.routed_experts)
    plain = protocol.encode_results(results[:1], {})
    assert type(protocol.decode_from_host(bytes(plain[0]))) is protocol.Results and len(plain) == 4
