"""``python -m bench.support.engine_tables``: write the record of benchmark ``engines`` into the READMEs of the engines.

A README holds a table between ``<!-- recorded: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.support.processes import ROOT
from bench.support.recorded_tables import Recorded, figures_in, filled_with

RECORDED = ROOT / "bench" / "results" / "engines.json"
ENGINES = ("torch", "hf", "vllm")
READMES = tuple(ROOT / "plugins" / "engines" / engine / "README.md" for engine in ENGINES)
MODELS = {"": "SmolLM2-135M", "tiny_": "tiny"}
"""Beginning of a field → the model that it is of."""

_BESIDE = {
    "raas_over_bare": ("tokens/s through the engine host, over the bare server's", ".2f"),
    "blocked_over_empty_swap": ("seconds blocked by a swap, over the same calls made bare", ".2f"),
    "logprob_gap_mean": ("log-probs against the scores of engine `torch`: mean gap", ".0e"),
    "logprob_gap_max": ("the same: largest gap", ".0e"),
    "start_s": ("start of the server, s", ".0f"),
}


def _cell(found: Recorded, field: str, form: str) -> str:
    value = found.get(field)
    return "not recorded" if not isinstance(value, int | float) else f"{value:{form}}"


def _rows(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def speeds(found: Recorded) -> str:
    """Engine by engine: tokens per second, and seconds that a swap blocks generation."""
    heads = [f"{model} {what}" for model in MODELS.values() for what in ("tokens/s", "swap s")]
    rows = [
        [f"`{engine}`"]
        + [
            _cell(found, f"{model}{engine}_{what}", form)
            for model in MODELS
            for what, form in (("tokens_s", ".0f"), ("swap_s", ".3f"))
        ]
        for engine in ENGINES
    ]
    return _rows(["engine", *heads], rows)


def beside(found: Recorded) -> str:
    """vLLM through its engine host beside the bare server, and beside engine ``torch``."""
    rows = [
        [what, *(_cell(found, f"{model}{field}", form) for model in MODELS)]
        for field, (what, form) in _BESIDE.items()
    ]
    return _rows(["", *MODELS.values()], rows)


TABLES = {"speeds": speeds, "beside": beside}


def filled(text: str, found: Recorded) -> str:
    """A README with its tables again. KeyError for a table that there is not."""
    return filled_with(text, found, TABLES)


def recorded() -> dict[str, float | str]:
    """The figures of the last whole run."""
    return figures_in(RECORDED)


def main(readmes: tuple[Path, ...] = READMES) -> int:
    """Entry point."""
    for file in readmes:
        before = file.read_text(encoding="utf-8")
        if (after := filled(before, recorded())) != before:
            file.write_text(after, encoding="utf-8")
            sys.stdout.write(f"wrote {file.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
