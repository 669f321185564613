"""What becomes of conversations by the templates of public models."""

from __future__ import annotations

from itertools import pairwise

import pytest
from chat_templates import TEMPLATES, Template

from astraflow_gateway.chat.template_check import ConversationCheck, check_template

APPENDS = (("continued",) * 2, ("continued",) * 3, ("continued",) * 2, ("continued",) * 2)
"""Of turns; tools; reasoning; tools and reasoning."""

BEGINS_TO_THINK = (("template",) * 2, ("template",) * 3, ("template",) * 2, ("template",) * 2)
"""The prompt has ``<think>``, which the template leaves out of the history."""

MOVES_TOOLS = (
    ("continued",) * 2,
    ("continued", "template", "template"),
    ("continued",) * 2,
    ("template",) * 2,  # text beside the call is dropped
)
"""The tools stand before the last question."""

EXPECTED = {
    "Qwen-Qwen3-0.6B": (
        ("continued",) * 2,
        ("continued",) * 3,
        ("template",) * 2,  # reasoning is dropped at the next question
        ("continued", "template"),  # but not at the result of a tool
    ),
    "Qwen-QwQ-32B": BEGINS_TO_THINK,
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": BEGINS_TO_THINK,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": (
        None,  # it requires tools
        ("continued", "template", "continued"),  # a line break comes only after the result
        None,
        ("template",) * 2,  # text beside the call is dropped
    ),
    "mistralai-Mistral-Nemo-Instruct-2407": MOVES_TOOLS,
    "Mistral-Small-3.2-24B-Instruct-2506": MOVES_TOOLS,
    "llama-cpp-rwkv-world": (("end",) * 2, ("end",) * 3, ("end",) * 2, ("end",) * 2),
}
"""Of the templates that do not only append."""


def _checked(template: Template) -> tuple[ConversationCheck, ...]:
    return check_template(template.tokenizer().chat_text, [template.end]).conversations


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.file)
def test_the_verdict_of_each_template(template: Template) -> None:
    found = _checked(template)
    assert [each.name for each in found] == ["turns", "tools", "reasoning", "tools and reasoning"]
    outcomes = tuple(None if each.refused else each.outcomes for each in found)
    assert outcomes == EXPECTED.get(template.file, APPENDS)
    for each in found:
        assert each.continues or not each.append_only


SAID = {
    "turns": "It is 23.",
    "reasoning": "<think>\nOne more than 22.\n</think>\n\nIt is 23.",
}


@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.file)
def test_append_only_is_what_rendering_shows(template: Template, name: str) -> None:
    """Rendered here without the gateway: is each prompt the one before, the reply, and more?"""
    (found,) = (each for each in _checked(template) if each.name == name)
    if found.refused:
        return
    render = template.tokenizer().chat_text
    messages: list[dict[str, str]] = []
    prompts: list[str] = []
    for question in ("a", "b", "c"):
        messages.append({"role": "user", "content": question})
        prompts.append(render(messages, True))
        messages.append({"role": "assistant", "content": SAID[name]})
    said = [SAID[name] + template.end, SAID[name].removeprefix("<think>\n") + template.end]
    grows = all(
        any(longer.startswith(shorter + each) for each in said)
        for shorter, longer in pairwise(prompts)
    )
    assert grows == found.append_only


def test_a_template_without_an_end_continues_nothing() -> None:
    found = check_template(TEMPLATES[0].tokenizer().chat_text, [])
    assert all(set(each.outcomes) == {"end"} for each in found.conversations)
