"""The tokenizer of a model with a chat template, for policies that a test scripts."""

from __future__ import annotations

from pathlib import Path

from astraflow_testing.scripted_policies import PairsTokenizer

TEMPLATES = Path(__file__).parents[3] / "libs" / "gateway" / "tests" / "templates"
QWEN = PairsTokenizer(
    (TEMPLATES / "Qwen-Qwen2.5-7B-Instruct.jinja").read_text("utf-8"),
    "<|im_end|>",
    ("<|im_start|>",),
)
