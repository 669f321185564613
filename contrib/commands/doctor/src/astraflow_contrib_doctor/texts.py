"""The tokenizer of a policy: whether texts survive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_contrib_doctor.finding import Finding
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer

PROBE_TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "1 + 2 = 3, 4 + 5 =",
    "Ein Zug fährt um 8:15 Uhr ab.",
    "问：十二加三十是多少？答：",
    "12+34=",
)
"""The fixed part of the probe set; the run's own first prompts come before it."""

PROMPT_TOKENS = 64
"""Longest prompt of the probe set."""

_SHOWN = 40

Tokens = npt.NDArray[np.int32]


def own_texts(data: Mapping[str, Any], depth: int = 3) -> Iterator[str]:
    """The texts in the data of a prompt, nested ones too."""
    values: list[Any] = list(data.values())
    while values and depth:
        yield from (value for value in values if isinstance(value, str) and value)
        inner: list[Any] = []
        for value in values:
            if isinstance(value, Mapping):
                inner += value.values()
            elif isinstance(value, list | tuple):
                inner += value
        values, depth = inner, depth - 1


def encoded(tokenizer: FolderTokenizer, text: str) -> Tokens | None:
    """Token ids, or ``None`` for a text that the tokenizer refuses: one over a small alphabet does."""
    try:
        return tokenizer.encode(text)
    except Exception:  # noqa: BLE001 - tokenizers raises Exception itself, for a word that it does not know
        return None


def probe_prompts(
    tokenizer: FolderTokenizer, texts: Sequence[str], vocabulary: int, most: int
) -> list[Tokens]:
    """Up to ``most`` different prompts of the probe set, int32 ``[P]``, P ≤ :data:`PROMPT_TOKENS`. A
    tokenizer that knows none of the texts gets single tokens."""
    found: dict[bytes, Tokens] = {}
    for text in (*texts, *PROBE_TEXTS):
        tokens = encoded(tokenizer, text)
        if tokens is not None and len(tokens) and tokens.max() < vocabulary:
            cut = tokens[:PROMPT_TOKENS]
            found.setdefault(cut.tobytes(), cut)
    chosen = list(found.values())[:most]
    return chosen or [np.array([i], np.int32) for i in range(min(most, vocabulary))]


def check_tokenizer(
    where: str, tokenizer: FolderTokenizer, model: Path, texts: Sequence[str]
) -> Iterator[Finding]:
    """Ids within the model's vocabulary, an end of sequence, and texts that come back as they went in."""
    subject = f"{where}.tokenizer"
    size = vocabulary_of(model)
    known = [
        tokens
        for text in (*texts, *PROBE_TEXTS)
        if (tokens := encoded(tokenizer, text)) is not None
    ]
    highest = max((int(tokens.max()) for tokens in known if len(tokens)), default=-1)
    outside = sorted({highest, *tokenizer.eos_token_ids} - set(range(-1, size)))
    if outside:
        yield Finding(
            "problem",
            subject,
            f"gives token ids up to {outside[-1]}; the model has {size}",
            f"the tokenizer in {model} belongs to another model: copy that of the model into the folder",
        )
    if not tokenizer.eos_token_ids:
        yield Finding(
            "warning",
            subject,
            "names no end of sequence, so that only max_tokens ends one",
            f"add eos_token_id to {model / 'generation_config.json'}, or set sampling.stop",
        )
    lost = [text for text in texts if not _round_trips(tokenizer, text)]
    if lost:
        yield Finding(
            "warning",
            subject,
            f"{len(lost)} of {len(texts)} texts of the first prompts do not come back from encode and decode, "
            f"such as {lost[0][:_SHOWN]!r}",
            "check that the tokenizer is the model's, and that a reward does not compare such texts",
        )
    elif not outside:
        yield Finding(
            "ok",
            subject,
            f"{len(texts)} texts of the first prompts come back from encode and decode",
        )


def check_stops(where: str, tokenizer: FolderTokenizer, stops: Sequence[str]) -> Iterator[Finding]:
    """Stop texts end a sequence as the tokens that they are encoded to."""
    for stop in stops:
        tokens = encoded(tokenizer, stop)
        subject = f"{where}.tokenizer"
        if tokens is None or not len(tokens):
            yield Finding(
                "problem",
                subject,
                f"cannot encode the stop text {stop!r}",
                "take it out of sampling.stop",
            )
        elif not _round_trips(tokenizer, stop):
            yield Finding(
                "warning",
                subject,
                f"the stop text {stop!r} is matched as tokens {tokens.tolist()}, which read "
                f"{tokenizer.decode(tokens, skip_special=False)!r}",
                "write it in sampling.stop as the model does",
            )


def vocabulary_of(model: Path) -> int:
    """``vocab_size`` of a Hugging Face folder."""
    described = msgspec.json.decode((model / "config.json").read_bytes())
    inner = described.get("text_config") or {}
    return int(described.get("vocab_size") or inner["vocab_size"])


def _round_trips(tokenizer: FolderTokenizer, text: str) -> bool:
    tokens = encoded(tokenizer, text)
    return tokens is not None and tokenizer.decode(tokens, skip_special=False) == text
