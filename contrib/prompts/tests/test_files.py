"""Rows of any file as prompts; CSV and tables of Apache Arrow."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from astraflow_contrib_prompts import rows
from astraflow_contrib_prompts.arrow import DatasetFolder, Parquet
from astraflow_contrib_prompts.config import (
    CsvConfig,
    DatasetFolderConfig,
    JsonLinesConfig,
    ParquetConfig,
)
from astraflow_contrib_prompts.csv_file import Csv
from astraflow_contrib_prompts.jsonl import JsonLines
from astraflow_contrib_prompts.messages import text_of
from astraflow_core.errors import PromptError
from astraflow_core.types import ComponentContext, Prompt, RunInfo
from astraflow_testing.images.pictures import picture

CONTEXT = ComponentContext(RunInfo("t", 0, 1, 0, ("p",), Path()), "dataflow", "", 0, Path())
ROW = {"q": "2+2?", "meta": {"level": 3, "answers": ["4", "four"]}, "rest": [1]}


def jsonl(folder: Path, *values: Any, **keys: Any) -> list[Prompt]:
    file = folder / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, values)))
    return list(JsonLines(JsonLinesConfig(path=file, **keys), CONTEXT))  # type: ignore[call-overload,no-any-return]


def table(folder: Path, text: str, **keys: Any) -> list[Prompt]:
    file = folder / "rows.csv"
    file.write_bytes(text.encode())
    return list(Csv(CsvConfig(path=file, **keys), CONTEXT))  # type: ignore[call-overload,no-any-return]


def saved(folder: Path, *shards: list[dict[str, Any]]) -> Path:
    """A folder as ``Dataset.save_to_disk`` writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [f"data-{n:05}-of-{len(shards):05}.arrow" for n in range(len(shards))]
    for name, values in zip(files, shards, strict=True):
        made = pa.Table.from_pylist(values)
        with (
            pa.OSFile(str(folder / name), "wb") as file,
            pa.ipc.new_stream(file, made.schema) as to,
        ):
            to.write_table(made, max_chunksize=2)
    state = {"_data_files": [{"filename": name} for name in files], "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


# --- rows ----------------------------------------------------------------------------------------


def test_keys_may_lead_into_a_row_and_templates_have_places_for_values(tmp_path: Path) -> None:
    keys = {"answer_key": "meta.answers.1", "keep": ["meta.level"]}
    (plain,) = jsonl(tmp_path, ROW, prompt_key="q", **keys)
    assert plain == Prompt("line:1", {"prompt": "2+2?", "answer": "four", "meta.level": 3})
    template = "Level {meta.level}: {q} Use \\boxed{} and {{q}}."
    (filled,) = jsonl(tmp_path, ROW, template=template, system="Be brief.", **keys)
    assert filled.data["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Level 3: 2+2? Use \\boxed{} and {q}."},
    ]
    (whole,) = jsonl(tmp_path, {"meta.level": 1, **ROW}, prompt_key="q", answer_key="meta.level")
    assert whole.data == {"prompt": "2+2?", "answer": 1, "meta": ROW["meta"], "rest": [1]}
    (after,) = jsonl(tmp_path, {"prompt": "x", "answer": "1+1\n#### 2 "}, answer_after="####")
    assert after.data["answer"] == "2"
    (named,) = jsonl(tmp_path, {"prompt": "x", "answer": "", "key": 7}, id_key="key")
    assert named == Prompt("7", {"prompt": "x", "answer": ""})


def test_messages_are_texts_or_parts_with_images(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    messages = [
        {"role": "user", "content": parts},
        called,
        {"role": "tool", "content": "c", "name": "t"},
    ]
    (prompt,) = jsonl(tmp_path, {"prompt": messages}, answer_key="")
    assert prompt.data["prompt"] == [{"role": "user", "content": "ab"}, *messages[1:]]
    picture_url = "data:image/png;base64," + base64.b64encode(picture(1)).decode()
    image = {"type": "image_url", "image_url": {"url": picture_url}}
    (seen,) = jsonl(
        tmp_path, {"prompt": [{"role": "user", "content": [image, *parts]}]}, answer_key=""
    )
    assert seen.data["prompt"] == [{"role": "user", "content": [image, *parts]}]
    assert text_of(seen.data).endswith("'}ab") and picture_url in text_of(seen.data)
    away = {"type": "image_url", "image_url": {"url": "https://host/x.png"}}
    cut = {"type": "image_url", "image_url": {"url": picture_url[:-40]}}
    wrong = {
        "bytes is damaged": [{"role": "user", "content": [cut]}],
        "a total of 65 images": [{"role": "user", "content": [image] * 65}],
        "an image at the address 'https://host'": [{"role": "user", "content": [away]}],
        "a part of type 'video_url'": [{"role": "user", "content": [{"type": "video_url"}]}],
        "a part of content that is not text": [{"role": "user", "content": [{"type": "file"}]}],
        "whose content is None": [{"role": "user", "content": None}],
        "whose role is 3": [{"role": 3, "content": "x"}],
    }
    with pytest.raises(PromptError) as caught:
        jsonl(tmp_path, *({"prompt": each} for each in wrong.values()), answer_key="")
    for number, (line, reason) in enumerate(
        zip(str(caught.value).splitlines(), wrong, strict=True), 1
    ):
        assert f"rows.jsonl:{number}: 'prompt' has a" in line and reason in line


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"answer_key": "meta.answers.2"},
            r":1: has no key 'meta.answers.2'; its keys: meta, q, rest",
        ),
        ({"answer_key": "q.x"}, "has no key 'q.x'"),
        ({"answer_key": "", "keep": ["gone"]}, "has no key 'gone'"),
        ({"template": "{rest}"}, "'rest' is of type list; a template takes texts and numbers"),
        (
            {"answer_key": "q", "answer_after": "="},
            r"'q' has nothing after '=' \(answer_after\), got '2",
        ),
        ({"answer_key": "meta.level", "answer_after": "="}, "got 3"),
    ],
)
def test_what_the_keys_do_not_find_is_named(tmp_path: Path, keys: Any, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        jsonl(tmp_path, ROW, **{"prompt_key": "q", "answer_key": "", **keys})


def test_a_template_without_places_is_refused() -> None:
    with pytest.raises(ValidationError, match="all prompts would be the same"):
        JsonLinesConfig(path=Path("x"), template="Solve \\boxed{}")


def test_many_prompts_are_kept_in_a_file_that_no_one_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_IN_MEMORY", 1000)
    run = tmp_path / "run"
    run.mkdir()
    context = ComponentContext(RunInfo("t", 0, 1, 0, ("p",), run), "dataflow", "", 0, Path())
    file = tmp_path / "many.jsonl"
    file.write_text("\n".join(json.dumps({"prompt": f"é{n}", "answer": n}) for n in range(500)))
    source = JsonLines(JsonLinesConfig(path=file), context)
    assert source._file._rolled and not list(run.iterdir())  # type: ignore[attr-defined]
    assert [source[n].data["prompt"] for n in (499, 0, 250)] == ["é499", "é0", "é250"]


# --- csv -----------------------------------------------------------------------------------------


def test_a_table_becomes_prompts(tmp_path: Path) -> None:
    text = '\ufeffprompt;answer;id\r\n"a ""b""\nc";1;x\r\n\r\nd;2;y\r\n'
    assert table(tmp_path, text, delimiter=";") == [
        Prompt("x", {"prompt": 'a "b"\nc', "answer": "1"}),
        Prompt("y", {"prompt": "d", "answer": "2"}),
    ]
    (numbered,) = table(tmp_path, "prompt,answer\na,1\n")
    assert numbered.id == "line:2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt,answer\na\n", r"rows.csv:2: has 1 fields; expected 2: prompt, answer"),
        ("prompt,prompt\na,b\n", r"rows.csv:1: the columns are 'prompt', 'prompt'"),
        ("", r"rows.csv: has no prompts"),
        ("prompt,answer\n", "has no prompts"),
        ('prompt,answer\n"a,b\n', r"rows.csv: not CSV after line 1"),
        ("question,answer\na,b\n", r"rows.csv:2: has no key 'prompt'; its keys: answer, question"),
        ("prompt,answer\n,b\n", "'prompt' is empty"),
    ],
)
def test_a_table_that_is_none_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(PromptError, match=message):
        table(tmp_path, text)


def test_a_table_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.csv").write_bytes("prompt,answer\né,1\n".encode("latin-1"))
    with pytest.raises(PromptError, match=r"latin.csv:\d: not UTF-8"):
        Csv(CsvConfig(path=tmp_path / "latin.csv"), CONTEXT)
    with pytest.raises(PromptError, match=r"'csv' cannot read .*none.csv: No such file"):
        Csv(CsvConfig(path=tmp_path / "none.csv"), CONTEXT)


# --- arrow ---------------------------------------------------------------------------------------


def test_parquet_files_of_a_folder_are_read_by_name(tmp_path: Path) -> None:
    for name, start in (("b", 3), ("a", 0)):
        values = [{"prompt": f"q{n}", "answer": n, "tags": ["x"]} for n in range(start, start + 3)]
        pq.write_table(pa.Table.from_pylist(values), tmp_path / f"{name}.parquet", row_group_size=2)
    source = Parquet(ParquetConfig(path=tmp_path), CONTEXT)
    assert [source[n].id for n in range(6)] == [f"row:{n}" for n in range(1, 7)]
    assert source[3].data == {"prompt": "q3", "answer": 3, "tags": ["x"]}
    one = Parquet(ParquetConfig(path=tmp_path / "b.parquet", keep=(), limit=2), CONTEXT)
    assert len(one) == 2 and one[0] == Prompt("row:1", {"prompt": "q3", "answer": 3})


def test_images_and_broken_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    values = [{"prompt": "x", "answer": 1, "image": {"bytes": b"\x89", "path": "a.png"}}]
    pq.write_table(pa.Table.from_pylist(values), file)
    with pytest.raises(
        PromptError, match=r"a.parquet: column 'image' .*binary.*an image\?.*keep = "
    ):
        Parquet(ParquetConfig(path=file), CONTEXT)
    assert len(Parquet(ParquetConfig(path=file, keep=()), CONTEXT)) == 1
    pq.write_table(pa.table({"prompt": ["x", None], "answer": [1.0, float("nan")]}), file)
    with pytest.raises(PromptError, match=r"(?s)a.parquet: row 2: 'prompt' must be text"):
        Parquet(ParquetConfig(path=file), CONTEXT)
    pq.write_table(pa.table({"prompt": ["x"], "answer": [float("nan")]}), file)
    with pytest.raises(PromptError, match=r"a.parquet: row 1: Out of range float"):
        Parquet(ParquetConfig(path=file), CONTEXT)
    file.write_bytes(b"PAR1 and no more")
    with pytest.raises(PromptError, match=r"'parquet' cannot read .*a.parquet after row 0"):
        Parquet(ParquetConfig(path=file), CONTEXT)
    with pytest.raises(PromptError, match="has no prompts; expected rows in"):
        (tmp_path / "empty").mkdir()
        Parquet(ParquetConfig(path=tmp_path / "empty"), CONTEXT)


def test_what_save_to_disk_wrote_is_read_part_by_part(tmp_path: Path) -> None:
    def values(start: int) -> list[dict[str, Any]]:
        return [
            {"prompt": [{"role": "user", "content": f"q{n}"}], "answer": str(n)}
            for n in range(start, start + 5)
        ]

    saved(tmp_path / "all" / "train", values(0), values(5))
    saved(tmp_path / "all" / "test", values(90))
    (tmp_path / "all" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    source = DatasetFolder(DatasetFolderConfig(path=tmp_path / "all", part="train"), CONTEXT)
    assert len(source) == 10
    assert source[7] == Prompt(
        "row:8", {"prompt": [{"role": "user", "content": "q7"}], "answer": "7"}
    )
    alone = DatasetFolder(DatasetFolderConfig(path=tmp_path / "all" / "test"), CONTEXT)
    assert alone[0].data["answer"] == "90"
    with pytest.raises(PromptError, match=r"has the parts 'train', 'test'; name one"):
        DatasetFolder(DatasetFolderConfig(path=tmp_path / "all"), CONTEXT)
    with pytest.raises(PromptError, match=r"leave out part = 'x'"):
        DatasetFolder(DatasetFolderConfig(path=tmp_path / "all" / "test", part="x"), CONTEXT)
    with pytest.raises(PromptError, match=r"has no state.json"):
        DatasetFolder(DatasetFolderConfig(path=tmp_path), CONTEXT)
    shard = next((tmp_path / "all" / "test").glob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[:200])
    with pytest.raises(PromptError, match=r"'dataset_folder' cannot read .*\.arrow after row 0"):
        DatasetFolder(DatasetFolderConfig(path=tmp_path / "all" / "test"), CONTEXT)
