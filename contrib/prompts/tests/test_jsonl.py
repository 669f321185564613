from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow_contrib_prompts import jsonl
from astraflow_contrib_prompts.config import JsonLinesConfig
from astraflow_contrib_prompts.jsonl import JsonLines
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt, RunInfo

CONTEXT = ComponentContext(RunInfo("t", 0, 1, 0, ("p",), Path()), "dataflow", "", 0, Path())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


def source(path: Path, *lines: str, **keys: Any) -> JsonLines:
    path.write_text("\n".join(lines), encoding="utf-8")
    return JsonLines(JsonLinesConfig(path=str(path), **keys), CONTEXT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data.jsonl"


def test_lines_become_prompts_and_keep_their_other_keys(path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    found = source(
        path,
        '{"prompt": "2+2?", "answer": "4", "level": 1}',
        "",
        json.dumps({"id": "b", "prompt": messages, "answer": 7}),
        '{"id": 12, "prompt": "é\\n", "answer": null}',
        "",
    )
    assert [found[i] for i in range(len(found))] == [
        Prompt("line:1", {"prompt": "2+2?", "answer": "4", "level": 1}),
        Prompt("b", {"prompt": messages, "answer": 7}),
        Prompt("12", {"prompt": "é\n", "answer": None}),
    ]


def test_keys_limit_and_missing_answers(path: Path) -> None:
    lines = [json.dumps({"question": f"q{i}", "gold": i}) for i in range(5)]
    found = source(path, *lines, prompt_key="question", answer_key="gold", limit=2)
    assert len(found) == 2
    assert found[1].data == {"prompt": "q1", "answer": 1}
    assert source(path, '{"prompt": "a"}', answer_key="")[0].data == {"prompt": "a"}
    assert len(source(path, '{"prompt": "a", "answer": ""}', "not reached", limit=1)) == 1


def test_every_bad_line_is_named_with_what_is_wrong(path: Path) -> None:
    bad = {
        "{oops": "not JSON",
        "[1]": "expected a JSON object",
        '{"prompt": "x", "answer": NaN}': "not JSON",
        '{"answer": "4"}': "has no key 'prompt'; its keys: answer",
        '{"prompt": "x"}': "has no key 'answer'; its keys: prompt",
        '{"prompt": "", "answer": 1}': "'prompt' is empty",
        '{"prompt": 5, "answer": 1}': "must be text or a list of messages, got 5",
        '{"prompt": [], "answer": 1}': "must be text or a list",
        '{"prompt": [{"role": "user"}], "answer": 1}': "message without 'role' and 'content'",
        '{"id": [], "prompt": "x", "answer": 1}': "'id' must be a string or an integer",
    }
    with pytest.raises(PromptError) as caught:
        source(path, '{"prompt": "fine", "answer": 1}', *bad)
    for number, (line, reason) in enumerate(
        zip(str(caught.value).splitlines(), bad.values(), strict=True), 2
    ):
        assert line.startswith(f"{path}:{number}: ")
        assert reason in line
    with pytest.raises(PromptError, match="and 90 more bad lines"):
        source(path, *["{"] * 100)
    with pytest.raises(PromptError, match="1: not JSON"):
        source(path, '{"prompt": ' + "[" * 100_000)


def test_duplicate_ids_name_both_lines(path: Path) -> None:
    line = '{"id": "a", "prompt": "x", "answer": 1}'
    with pytest.raises(PromptError, match=r"data\.jsonl:3: id 'a' is that of line 1"):
        source(path, line, "", line)


@pytest.mark.parametrize("content", ["", "\n\n  \n"])
def test_an_empty_file_is_refused(path: Path, content: str) -> None:
    with pytest.raises(PromptError, match=r"data\.jsonl: has no prompts"):
        source(path, content)


def test_files_that_cannot_be_read_are_named(path: Path, tmp_path: Path) -> None:
    with pytest.raises(PromptError, match=f"cannot read {path}: No such file"):
        JsonLines(JsonLinesConfig(path=str(path)), CONTEXT)
    with pytest.raises(PromptError, match="Is a directory"):
        JsonLines(JsonLinesConfig(path=str(tmp_path)), CONTEXT)
    path.write_bytes(b'{"prompt": "\xff", "answer": 1}')
    with pytest.raises(PromptError, match=r"data\.jsonl:1: "):
        JsonLines(JsonLinesConfig(path=str(path)), CONTEXT)


@given(
    st.lists(
        st.fixed_dictionaries(
            {"prompt": st.text(min_size=1), "answer": json_values, "extra": json_values}
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_was_written_is_what_is_read(
    tmp_path_factory: pytest.TempPathFactory, items: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "written.jsonl"
    found = source(path, *map(json.dumps, items))
    assert [found[i].data for i in range(len(found))] == items


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["device", "pipe"])
def test_what_is_no_regular_file_is_refused_at_once(path: Path, kind: str) -> None:
    if kind == "device":
        path = Path("/dev/zero")
    else:
        os.mkfifo(path)
    with pytest.raises(PromptError, match=f"'jsonl': {path} is not a regular file"):
        JsonLines(JsonLinesConfig(path=path), CONTEXT)


def test_a_line_without_end_is_refused_by_its_number(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jsonl, "_MAX_LINE", 1 << 20)
    lines = ['{"prompt": "a", "answer": "b"}', " " * ((1 << 20) - 1), "x" * (1 << 20) + "x"]
    assert len(source(path, *lines[:2])) == 1
    with pytest.raises(PromptError, match=r"data.jsonl:3: a line of over 1 MiB; expected one JSON"):
        source(path, *lines)
