"""Whatever an agent and a template make of a conversation: each sampled token is trained once, in the context in which
it was sampled, and nothing else is."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import numpy as np
import pytest
from chat_templates import TEMPLATES, Template
from hypothesis import given, settings
from hypothesis import strategies as st
from speakers import SPEAKERS, Speaker, asked

from astraflow_core.types import Sampling
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.episode import Budget, Episode, Rules
from astraflow_testing.scripted_policies import ScriptedPolicies, ScriptedRequest, Truncated

RULES = Rules(Budget(calls=1000, tokens=1_000_000), train_auxiliary=True)
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        },
    },
}
CALLS = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a":1,  "b": 22}}\n</tool_call>',
    "llama": '{"name": "add", "parameters": {"a":1,  "b": 22}}',
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {"a":1,  "b": 22}}]',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>"
    '{"a":1,  "b": 22}<|tool_call_end|><|tool_calls_section_end|>',
}
TEXTS = st.sampled_from(["ok", " it is 42, or 421 ", "ünï", "a\n\nb", "12 34"])


def test_the_format_of_each_template_is_found() -> None:
    for template in TEMPLATES:
        form = ChatFormat(_policies(template, []).engines()["p"])
        found = (form.tool_style, form.native_tools, form.reasons)
        assert found == (template.style, template.native, template.reasons), template.file


@st.composite
def _turns(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    """What the model says in each turn, and what the agent makes of it."""
    turns = []
    for _ in range(draw(st.integers(1, 6))):
        said = {
            "text": draw(TEXTS),
            "thinks": draw(st.booleans()),
            "calls": draw(st.booleans()),
            "cut": draw(st.integers(0, 9)) == 0,
        }
        agent = {
            "keeps_reasoning": draw(st.booleans()),
            "does": draw(st.sampled_from(["goes on"] * 6 + ["rewrites", "asks again", "forgets"])),
        }
        turns.append((said, agent))
    return turns


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.file)
@settings(max_examples=8)
@given(turns=_turns(), with_tools=st.booleans(), speaker=st.sampled_from(SPEAKERS))
def test_every_sampled_token_is_trained_once(
    template: Template, turns: list[Any], with_tools: bool, speaker: Speaker
) -> None:
    with_tools |= "Hermes-3" in template.file  # its template requires it
    said = [_said(template, each, with_tools) for each, _ in turns]
    policies = _policies(template, [text for text in said for _ in range(2)])
    episode = asyncio.run(_played(policies, turns, with_tools, speaker))
    sampled: Counter[bytes] = Counter()
    for request in policies.asked:
        assert request.result is not None
        for at in range(len(request.result.tokens)):
            sampled[_key(request, at)] += 1
    trained: Counter[bytes] = Counter()
    for sequence in episode.sequences():
        for at in np.flatnonzero(sequence.loss_mask).tolist():
            context = sequence.tokens[: at + 1].tobytes()
            trained[
                context + sequence.logprobs[at].tobytes() + sequence.versions[at].tobytes()
            ] += 1
        untrained = ~sequence.loss_mask
        assert not sequence.logprobs[untrained].any() and (sequence.versions[untrained] == -1).all()
    assert trained == sampled


def _key(asked: ScriptedRequest, at: int) -> bytes:
    result = asked.result
    assert result is not None
    context = np.concatenate([asked.prompt, result.tokens[: at + 1]]).tobytes()
    return context + result.logprobs[at].tobytes() + result.versions[at].tobytes()


def _said(template: Template, said: dict[str, Any], with_tools: bool) -> Any:
    text = f"<think>\nlet me see\n</think>\n\n{said['text']}" if said["thinks"] else said["text"]
    if with_tools and said["calls"]:
        text = CALLS[template.style] if template.style != "hermes" else text + CALLS["hermes"]
    return Truncated(text) if said["cut"] else text


def _policies(template: Template, said: list[Any]) -> ScriptedPolicies:
    sampling = Sampling(max_tokens=400)
    return ScriptedPolicies(
        ["p"], says={"p": said}, tokenizer=template.tokenizer(), sampling=sampling
    )


async def _played(
    policies: ScriptedPolicies, turns: list[Any], with_tools: bool, speaker: Speaker
) -> Episode:
    engines = policies.engines()
    formats = {name: ChatFormat(engine) for name, engine in engines.items()}
    episode = Episode(engines, formats, RULES, "p")
    tools = [TOOL] if with_tools else []
    opening = speaker.user("what is 1 + 22?")
    history = [*opening]
    for _, agent in turns:
        whole = await asked(speaker, episode, history, tools)
        if agent["does"] == "asks again":
            whole = await asked(speaker, episode, history, tools)
        reply, calls = speaker.reply(whole, agent["keeps_reasoning"], agent["does"] == "rewrites")
        history += reply
        history += speaker.results(calls, '{"sum": 23}') if calls else speaker.user("go on")
        if agent["does"] == "forgets":
            history = [*opening]
    return episode
