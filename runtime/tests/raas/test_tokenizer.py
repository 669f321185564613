"""Tokenizer and chat templates against transformers, on the same folders."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from astraflow_core.errors import UserError
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer

pytestmark = pytest.mark.timeout(60)

CHATML = (
    "{%- if messages[0].role != 'system' %}{{ bos_token }}{% endif %}\n"
    "{% for message in messages %}\n"
    "    {%- if message['role'] == 'skip' %}{% continue %}{% endif %}\n"
    "{{- '<' + message['role'][0] + '>' }}\n"
    "    {% generation %}{{ message['content'] | trim }}{% endgeneration %}\n"
    "{{ eos_token }}\n"
    "{% if message.tools %}{{ message.tools | tojson }}{% endif %}"
    "{% endfor %}\n"
    "{% if add_generation_prompt %}<a>{% endif %}"
)
CHATS = [
    [{"role": "user", "content": " 1+1=  "}],
    [
        {"role": "system", "content": "add"},
        {"role": "skip", "content": "never shown"},
        {"role": "user", "content": "2+2", "tools": [{"b": "1<2 & é", "a": [1, None]}]},
    ],
]


@pytest.fixture
def folder(model, tmp_path):
    target = tmp_path / "model"
    shutil.copytree(model, target)
    return target


def edit(folder, name, **changes):
    path = folder / name
    value = json.loads(path.read_text()) if path.is_file() else {}
    value.update(changes)
    path.write_text(json.dumps({k: v for k, v in value.items() if v is not None}))


@pytest.fixture
def reference(monkeypatch):
    monkeypatch.setenv("USE_TORCH", "0")
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained


@pytest.mark.parametrize("template", [None, CHATML])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("prompted", [True, False])
def test_renders_as_transformers_does(folder, reference, template, chat, prompted):
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
        edit(
            folder,
            "tokenizer_config.json",
            bos_token={"__type": "AddedToken", "content": "*", "special": True},
        )
    ours, theirs = FolderTokenizer(folder), reference(folder)
    expected = theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=prompted)
    assert ours._template.render(chat, prompted) == expected
    # The tiny alphabet holds what the first chat says.
    if chat is CHATS[0] and template is None:
        ids = theirs.apply_chat_template(chat, add_generation_prompt=prompted, return_dict=False)
        assert ours.render(chat, prompted).tolist() == ids


def test_encodes_and_decodes_as_transformers_does(folder, reference):
    ours, theirs = FolderTokenizer(folder), reference(folder)
    text = "x12345=87654$"
    assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False)
    assert ours.render(text).tolist() == ours.encode(text).tolist()
    assert ours.encode(text).dtype == np.int32
    ids = ours.encode(text)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True) == "x12345=87654"
    assert ours.decode(ids, skip_special=False) == text


def test_end_ids_come_from_the_generation_config_then_the_model_then_the_tokenizer(folder):
    edit(folder, "generation_config.json", eos_token_id=[1, 4])
    edit(folder, "config.json", eos_token_id=2)
    assert FolderTokenizer(folder).eos_token_ids == (1, 4)
    edit(folder, "generation_config.json", eos_token_id=None)
    assert FolderTokenizer(folder).eos_token_ids == (2,)
    edit(folder, "config.json", eos_token_id=None)
    edit(folder, "tokenizer_config.json", eos_token={"content": "$"})
    assert FolderTokenizer(folder).eos_token_ids == (1,)


def test_a_named_default_among_several_templates_is_used(folder):
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    templates = [
        {"name": "rag", "template": "r"},
        {"name": "default", "template": "d{{ messages|length }}"},
    ]
    edit(folder, "tokenizer_config.json", chat_template=templates)
    assert FolderTokenizer(folder)._template.render(CHATS[0], True) == "d1"


def test_a_template_that_refuses_or_is_missing_says_so(folder):
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(UserError, match="rejected the messages: roles must alternate"):
        FolderTokenizer(folder).render(CHATS[0])
    (folder / "chat_template.jinja").unlink()
    edit(folder, "tokenizer_config.json", chat_template=None)
    with pytest.raises(UserError, match="has no chat template"):
        FolderTokenizer(folder).render(CHATS[0])


def test_a_template_cannot_reach_into_python(folder):
    (folder / "chat_template.jinja").write_text(
        "{{ messages.__class__.__mro__ }}{{ messages.append(1) }}"
    )
    with pytest.raises(UserError, match="rejected"):
        FolderTokenizer(folder).render(CHATS[0])


def test_a_special_token_that_a_message_quotes_stays_text(folder):
    known = json.loads((folder / "tokenizer.json").read_text())
    known["added_tokens"].append(
        {**known["added_tokens"][0], "id": 99, "content": "==x", "special": True}
    )
    (folder / "tokenizer.json").write_text(json.dumps(known))
    ours = FolderTokenizer(folder)
    special = int(ours.encode("==x")[0])
    assert ours.encode("1==x2").tolist().count(special) == 1

    def ids(role: str, content: str) -> tuple[list[int], list[int]]:
        chat = [{"role": role, "content": content}]
        return ours.render(chat).tolist(), ours.encode(ours.chat_text(chat)).tolist()

    for role in ("user", "system"):
        quoted, read = ids(role, "1==x2")
        assert special not in quoted and special in read
        decoded = [
            ours.decode(np.array(each, np.int32), skip_special=False) for each in (quoted, read)
        ]
        assert decoded[0] == decoded[1]
    for role, content in (("user", "1=x2"), ("assistant", "1==x2")):
        assert ids(role, content)[0] == ids(role, content)[1]


def test_text_that_cannot_be_encoded_is_named(folder):
    says = r"tokenizer\.json cannot encode 'ünï': .*no token for a character of this text: change"
    with pytest.raises(UserError, match=says):
        FolderTokenizer(folder).encode("ünï")


def test_a_folder_without_a_tokenizer_is_named(tmp_path):
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        FolderTokenizer(tmp_path)


def test_special_texts_are_those_that_the_file_calls_special(folder):
    added = [
        {"id": 0, "content": "<|im_end|>", "special": True},
        {"id": 1, "content": "<tool_call>", "special": False},
    ]
    every = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    edit(
        folder,
        "tokenizer.json",
        added_tokens=[{**each, **every} for each in added],
        model={
            "type": "BPE",
            "vocab": {"<|im_end|>": 0, "<tool_call>": 1, "<": 2, "|": 3},
            "merges": [],
        },
    )
    tokenizer = FolderTokenizer(folder)
    assert tokenizer.special_texts == ("<|im_end|>",)
    assert tokenizer.encode("<|im_end|><tool_call>|<").tolist() == [0, 1, 3, 2]


def test_tokenizers_are_told_apart_by_what_their_ids_mean(folder, tmp_path):
    one = FolderTokenizer(folder)
    assert (
        one.fingerprint == FolderTokenizer(shutil.copytree(folder, tmp_path / "same")).fingerprint
    )
    file = folder / "tokenizer.json"
    described = json.loads(file.read_text())
    first, second = list(described["model"]["vocab"])[-2:]
    vocabulary = described["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(described))
    assert FolderTokenizer(folder).fingerprint != one.fingerprint
