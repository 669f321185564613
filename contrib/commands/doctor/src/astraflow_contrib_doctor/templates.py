"""What the chat template of a policy makes of conversations: whether an episode of several turns is one sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from astraflow_contrib_doctor.finding import Finding
from astraflow_contrib_doctor.texts import encoded
from astraflow_gateway.chat.format import told_of_tools
from astraflow_gateway.chat.template_check import (
    CONTINUED,
    ConversationCheck,
    TemplateCheck,
    check_template,
)
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer

_WHY = {
    "template": "the template writes an earlier turn in another way by then",
    "end": "the template does not end a reply with the token that ends one",
}
_FIX = (
    "nothing is trained wrongly, but each such request repeats all that came before it, which costs training time: keep "
    "it, or put a chat_template.jinja that only appends into the folder of the model"
)


def check_chat_template(where: str, tokenizer: FolderTokenizer, several_turns: bool) -> Finding:
    """What the gateway does with the turns of an episode: it continues the recorded tokens, or begins a new sequence,
    which is a warning for a run whose episodes have ``several_turns``."""
    subject = f"{where}.chat template"
    ends = [
        tokenizer.decode(np.array([token], np.int32), skip_special=False)
        for token in tokenizer.eos_token_ids
    ]
    checked = check_template(tokenizer.chat_text, [end for end in ends if end])
    tells_tools = encoded(tokenizer, told_of_tools(checked.native_tools)) is not None
    found = [each for each in checked.conversations if tells_tools or "tools" not in each.name]
    if all(each.refused for each in found):
        return Finding(
            "ok",
            subject,
            f"not used: {found[0].refused}",
            "give prompts as strings, or fix the template",
        )
    figures = {name: value for each in found for name, value in _figures(each)}
    told = f"; {_of_tools(checked, tells_tools)}"
    if all(each.continues for each in found):
        text = f"each turn continues the tokens of the previous one, with {_names(found)}"
        return Finding("ok", subject, text + told, figures=figures)
    became: dict[str, list[ConversationCheck]] = {}
    for each in found:
        became.setdefault(_became(each), []).append(each)
    text = "; ".join(f"{_names(checks)}: {what}" for what, checks in became.items()) + told
    if several_turns:
        return Finding("warning", subject, text, _FIX, figures)
    return Finding("ok", subject, f"{text}. The workflow declares no turns", "", figures)


def _figures(check: ConversationCheck) -> Iterator[tuple[str, float]]:
    """``NAME.requests``, of which ``NAME.continued``, and ``NAME.OUTCOME`` for each reason to begin anew."""
    name = check.name.replace(" ", "_")
    yield f"{name}.append_only", float(check.append_only)
    yield f"{name}.refused", float(bool(check.refused))
    yield f"{name}.requests", float(len(check.outcomes))
    counts = {CONTINUED: 0} | check.counts
    yield from ((f"{name}.{outcome}", float(count)) for outcome, count in counts.items())


def _became(check: ConversationCheck) -> str:
    if check.refused:
        return f"refused ({check.refused})"
    if check.continues:
        return "continues"
    counts = {outcome: count for outcome, count in check.counts.items() if outcome != CONTINUED}
    why = ", and ".join(_WHY.get(outcome, outcome) for outcome in counts)
    some = "" if sum(counts.values()) == len(check.outcomes) else "some "
    return f"{some}later requests begin a sequence of their own, since {why}"


def _of_tools(checked: TemplateCheck, tells_tools: bool) -> str:
    if not tells_tools:
        return (
            "this model does not support tools, because its tokenizer cannot encode the tool prompt: requests "
            "with tools are refused"
        )
    form = f"calls are read in the form {checked.tool_style!r}"
    if checked.native_tools:
        return f"tools are given by the template, {form}"
    return f"the template does not support tools, so they are described in plain text, {form}"


def _names(found: Iterable[ConversationCheck]) -> str:
    return ", ".join(each.name for each in found)
