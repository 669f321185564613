from __future__ import annotations

import json
from pathlib import Path

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
