"""The trained tokens are exactly the sampled ones: text is decoded from them and never encoded again.

The tokenizer here encodes ``12`` as one token, so that no text encodes to the tokens ``1`` and then ``2`` of a model.
"""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
from local_engine import LocalEngine, replicas_of
from raas_run import task

from astraflow_core.types import GenerateResult, Trajectory
from astraflow_runtime.raas.episodes.episodes import TaskFailed, TaskRunner
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_runtime.raas.episodes.workflows import NamedWorkflow
from astraflow_runtime.raas.rewards.scoring import LoopScorer
from astraflow_runtime.raas.user_objects import as_workflow
from astraflow_wire.groups import ReceivedGroup
from astraflow_wire.messages import SamplingMessage

pytestmark = pytest.mark.timeout(20)

VOCABULARY = {"x": 0, "1": 1, "2": 2, "12": 3, "=": 4, "$": 5, "3": 6, "<unknown>": 7}
UNLIKE_ITS_TEXT = [1, 2]


@pytest.fixture
def folder(tmp_path):
    """A tokenizer with one merge, and a chat template that writes an assistant's words as it likes."""
    model = {
        "type": "BPE", "vocab": VOCABULARY, "merges": [["1", "2"]], "unk_token": "<unknown>",
        "dropout": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
    }  # fmt: skip
    described = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Fuse"}, "model": model,
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    template = "{% for m in messages %}x{{ m['content']|trim }}={% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return tmp_path


class Says:
    """An engine that samples the given tokens, one part per request, and records the requests."""

    def __init__(self, *parts: tuple[list[int], str]) -> None:
        self.parts, self.requests = list(parts), []

    async def generate(self, request):
        self.requests.append(request)
        tokens, reason = self.parts.pop(0)
        return GenerateResult(
            request.id,
            np.array(tokens, np.int32),
            np.full(len(tokens), -0.5, np.float32),
            np.zeros(len(tokens), np.int32),
            reason,
        )


@pytest.fixture
def roll_out(folder):
    """Roll out one episode with scripted samples: the group, the requests, the texts rewarded."""

    def rolled_out(workflow, *parts, **sampling):
        engine, says = LocalEngine(), Says(*parts)
        engine.generate = says.generate
        handle = PolicyHandle(replicas_of(engine), FolderTokenizer(folder))
        texts = []

        async def reward(view):
            texts.extend(completion.text for completion in view.completions)
            return 1.0

        runner = TaskRunner(
            "raas-0",
            NamedWorkflow("w", as_workflow(workflow)),
            LoopScorer("r", reward),
            {"solver": handle},
        )
        asked = task(
            group_size=1,
            data={"prompt": "x12="},
            sampling=SamplingMessage(**{"max_tokens": 8, **sampling}),
        )
        try:
            return ReceivedGroup(asyncio.run(runner.run(asked))), says.requests, texts
        finally:
            assert len(says.requests) == len(parts)

    return rolled_out


async def once(engines, prompt):
    engine = engines["solver"]
    tokens = engine.render([{"role": "user", "content": "12"}])
    result = await engine.generate(tokens)
    return Trajectory((engine.sequence(tokens, result),), (engine.completion(result),))


async def twice(engines, prompt):
    """A second turn is appended to the conversation, as tokens."""
    engine = engines["solver"]
    first = engine.render([{"role": "user", "content": "12"}])
    said = await engine.generate(first)
    turn = engine.render("x3=")
    second = np.concatenate([first, said.tokens, turn])
    again = await engine.generate(second)
    return Trajectory((engine.sequence(second, again),), (engine.completion(again),))


async def with_a_tool(engines, prompt):
    """Reads a call in the text of what was sampled, and appends the tool's answer as tokens."""
    engine = engines["solver"]
    first = engine.render([{"role": "user", "content": "12"}])
    call = await engine.generate(first)
    answer = engine.render(f"{engine.completion(call).text}=")
    second = np.concatenate([first, call.tokens, answer])
    result = await engine.generate(second)
    return Trajectory((engine.sequence(second, result),), (engine.completion(result),))


def test_tokens_of_a_group_are_those_that_were_sampled(roll_out):
    group, _, texts = roll_out(once, ([*UNLIKE_ITS_TEXT, 5], "stop"))
    assert texts == ["12$"]
    assert group.tokens.tolist() == [0, 3, 4, *UNLIKE_ITS_TEXT, 5]
    assert group.loss_mask.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_stop_text_is_tokens_for_the_engine_and_cuts_no_text(roll_out):
    group, (request,), _ = roll_out(once, ([6, 3], "stop"), stop=["12", "3="])
    assert request.sampling.stop_sequences == ((3,), (6, 4))
    assert group.tokens.tolist()[3:] == [6, 3]
    # What reads like the stop text in other tokens is not it, and stays as it was sampled.
    group, _, texts = roll_out(once, ([*UNLIKE_ITS_TEXT, 6], "length"), stop=["12"])
    assert group.tokens.tolist()[3:] == [*UNLIKE_ITS_TEXT, 6] and texts == ["123"]


def test_what_an_abort_cut_short_continues_with_its_tokens(roll_out):
    group, requests, _ = roll_out(once, (UNLIKE_ITS_TEXT, "abort"), ([6, 5], "stop"))
    assert requests[1].prompt.tolist() == [0, 3, 4, *UNLIKE_ITS_TEXT]
    assert requests[1].sampling.max_tokens == 8 - len(UNLIKE_ITS_TEXT)
    assert group.tokens.tolist() == [0, 3, 4, *UNLIKE_ITS_TEXT, 6, 5]


def test_a_second_turn_keeps_the_tokens_of_the_first(roll_out):
    group, requests, _ = roll_out(twice, (UNLIKE_ITS_TEXT, "length"), ([6, 5], "stop"))
    assert requests[1].prompt.tolist() == [0, 3, 4, *UNLIKE_ITS_TEXT, 0, 6, 4]
    assert group.tokens.tolist() == [0, 3, 4, *UNLIKE_ITS_TEXT, 0, 6, 4, 6, 5]


def test_a_call_is_read_in_the_text_and_kept_as_its_tokens(roll_out):
    group, requests, _ = roll_out(with_a_tool, (UNLIKE_ITS_TEXT, "length"), ([6, 5], "stop"))
    # The tool answers with the text of the call, whose tokens are others than those that were sampled.
    assert requests[1].prompt.tolist() == [0, 3, 4, *UNLIKE_ITS_TEXT, 3, 4]
    assert group.tokens.tolist() == [0, 3, 4, *UNLIKE_ITS_TEXT, 3, 4, 6, 5]
    assert group.loss_mask.tolist() == [0] * 7 + [1, 1]


def test_what_does_not_fit_is_refused_before_the_engine_gets_it(roll_out):
    with pytest.raises(
        TaskFailed, match=r"3 tokens \+ max_tokens 62 = 65 exceeds the context"
    ) as caught:
        roll_out(once, max_tokens=62)
    assert caught.value.fatal


def test_the_text_would_have_been_other_tokens(folder):
    """The tests above can fail."""
    tokenizer = FolderTokenizer(folder)
    text = tokenizer.decode(np.array(UNLIKE_ITS_TEXT, np.int32))
    assert tokenizer.encode(text).tolist() == [3] != UNLIKE_ITS_TEXT
