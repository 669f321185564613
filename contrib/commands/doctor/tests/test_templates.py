"""What the doctor says of chat templates."""

from __future__ import annotations

import json
import string
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_doctor.finding import Finding
from astraflow_contrib_doctor.templates import check_chat_template
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_tiny_model.folder import write_tiny_model

CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ CONTENT }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LAST_ONLY = (
    "m['content'] if loop.last or m['role'] == 'user' else m['content'].split('</think>')[-1]"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model(tmp_path, alphabet=string.printable)


def model(tmp_path: Path, **keys: Any) -> Path:
    return write_tiny_model(tmp_path / "model", hidden=8, layers=1, heads=1, kv_heads=1, **keys)


def found(folder: Path, template: str | None, several_turns: bool = True) -> Finding:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))
    return check_chat_template("solver", FolderTokenizer(folder), several_turns)


def test_a_template_that_only_appends(folder: Path) -> None:
    finding = found(folder, CHAT.replace("CONTENT", "m['content']"))
    assert finding.level == "ok"
    assert "continues the tokens of the previous one, with turns, tools, reasoning" in finding.text
    assert "the template does not support tools" in finding.text
    assert finding.figures["turns.requests"] == finding.figures["turns.continued"] == 2
    assert finding.figures["turns.append_only"] == 1


def test_a_template_that_drops_earlier_reasoning(folder: Path) -> None:
    finding = found(folder, CHAT.replace("CONTENT", LAST_ONLY))
    assert finding.level == "warning" and "chat_template.jinja that only appends" in finding.fix
    assert finding.text.startswith(
        "turns, tools: continues; reasoning, tools and reasoning: later requests begin a sequence of their own, since "
        "the template writes an earlier turn in another way by then"
    )
    told = json.loads(json.dumps(asdict(finding)))["figures"]
    assert told["reasoning.template"] == 2 and told["reasoning.append_only"] == 0


def test_a_template_that_ends_no_reply(folder: Path) -> None:
    finding = found(folder, CHAT.replace("CONTENT", "m['content']").replace("{{ eos_token }}", ";"))
    assert "does not end a reply with the token that ends one" in finding.text
    assert finding.figures["turns.end"] == 2


def test_a_template_that_refuses_some(folder: Path) -> None:
    refuses = "{{ raise_exception('no tools') if '<tools>' in messages[0].content }}"
    finding = found(folder, refuses + CHAT.replace("CONTENT", "m['content']"))
    assert finding.level == "warning" and "tools, tools and reasoning: refused (" in finding.text
    assert finding.figures["tools.refused"] == 1


def test_a_model_without_a_template_is_not_at_fault(folder: Path) -> None:
    finding = found(folder, None)
    assert finding.level == "ok" and "has no chat template" in finding.text


def test_a_tokenizer_without_the_letters_cannot_encode_tools(tmp_path: Path) -> None:
    finding = found(model(tmp_path), CHAT.replace("CONTENT", "m['content']"))
    assert "this model does not support tools, because its tokenizer" in finding.text
    assert "plain text" not in finding.text and "tools.requests" not in finding.figures


def test_a_run_of_single_turns_is_not_warned(folder: Path) -> None:
    finding = found(folder, CHAT.replace("CONTENT", LAST_ONLY), several_turns=False)
    assert finding.level == "ok" and finding.figures["reasoning.template"] == 2
