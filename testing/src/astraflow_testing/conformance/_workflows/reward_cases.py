"""Completions for a reward: right ones, wrong ones, and texts that a policy under training writes."""

from __future__ import annotations

from typing import Any

import numpy as np

from astraflow_core.types import Completion, Prompt, TrajectoryView

HUGE = 20_000
"""Characters of a long completion of a policy that repeats itself."""


def texts(right: str) -> dict[str, str]:
    """Label → text of a completion; ``right`` is what the prompt asks for."""
    return {
        "the right answer": right,
        "the right answer in a sentence": f"So the answer is {right}.",
        "a boxed answer": rf"Thus \boxed{{{right}}}",
        "a wrong answer": "-17.25",
        "nothing": "",
        "white space": " \n\t  \r\n",
        "words": "I do not know.",
        "control characters": "\x00\x01\x1b[2J\x7f\u2028\ufeff",
        "replacement characters": "\ufffd" * 40,
        "other scripts": "٣١ ²½ 〇 ５ Ⅻ ‮7 e\u0301 👩\u200d🚀",
        "invalid numbers": "nan inf -inf 1e999999999 0x1p5 1_0 --3 +-2 .",
        "a division by zero": "7/0",
        "a power too large for memory": "9**9**9**9",
        "code that ends the process": "__import__('os')._exit(9)",
        "an open bracket": r"\boxed{" + "{" * 50 + " <answer> ```python\nimport os",
        "an open tag": "<think>" * 30 + "<answer>",
        "truncated JSON": '{"answer": [1, {"a": "\\u00',
        "very many digits": "9" * HUGE,
        "very many brackets": "(" * HUGE,
        "very much nesting": "[" * (HUGE // 2) + "]" * (HUGE // 2),
        "very many spaces": " " * HUGE + "x",
        "a letter repeated very often": "a" * HUGE + "!",
        "very many thousands": "1," * (HUGE // 2),
        "very many points": "1." * (HUGE // 2),
        "very many lines": "x\n" * (HUGE // 2),
        "very many boxes": r"\boxed{1}" * (HUGE // 9),
        "very many fractions": "1/2 " * (HUGE // 4),
        "very many minuses": "-" * HUGE + "1",
    }


def view(prompt: Prompt, *said: str, policies: tuple[str, ...], ended: str = "stop") -> Any:
    """A trajectory in which the policies said these in turn."""
    completions = tuple(
        Completion(
            policies[turn % len(policies)],
            text,
            np.arange(min(len(text), 9), dtype=np.int32),
            ended,
        )
        for turn, text in enumerate(said)
    )
    return TrajectoryView(prompt, completions)


def views(prompt: Prompt, right: str, policies: tuple[str, ...]) -> dict[str, TrajectoryView]:
    """Label → trajectory; in each every policy said something."""
    said = texts(right)
    some = len(policies)
    made = {label: view(prompt, *[text] * some, policies=policies) for label, text in said.items()}
    return made | {
        "a truncated answer": view(prompt, *[right[:1]] * some, policies=policies, ended="length"),
        "many turns": view(prompt, *[*said.values()][:12] * some, policies=policies),
    }
