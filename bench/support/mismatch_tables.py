"""``python -m bench.support.mismatch_tables``: write the record of benchmark ``mismatch`` into `docs/mismatch.md`."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.mismatch import LENGTHS, PAIRS, POSITIONS
from bench.support.processes import ROOT
from bench.support.recorded_tables import Recorded, figures_in, filled_with

RECORDED = ROOT / "bench" / "results" / "mismatch.json"
PAGE = ROOT / "docs" / "mismatch.md"
COSTS = {
    "sampling": "sampling, 16 requests at once",
    "sampling_alone": "sampling, one request",
    "scoring": "the trainer's log-probs",
    "step": "a training step",
}
NAMES = {
    "exact": "`torch` and `torch`, `batch_invariant`",
    "torch_torch": "`torch` and `torch`",
    "bfloat16_torch": "`torch` in bfloat16 and `torch`",
}


def _table(*rows: list[str]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _gap(found: Recorded, field: str) -> str:
    value = found.get(field)
    if value is None:
        return "not recorded"
    return "0" if value == 0 else f"{value:.1e}"


def _pairs(found: Recorded) -> list[tuple[str, str]]:
    """Those that were recorded, with their names."""
    return [
        (pair, NAMES.get(pair, "`{}` and `{}`".format(*PAIRS[pair])))
        for pair in PAIRS
        if f"{pair}_mean" in found
    ]


def costs(found: Recorded) -> str:
    """CPU seconds with the key over those without."""
    rows = [[what, f"{found[f'exact_over_fast_{name}']:.2f} ×"] for name, what in COSTS.items()]
    return _table(["CPU seconds with `batch_invariant` over those without", ""], *rows)


def gaps(found: Recorded) -> str:
    """The distribution of each pair."""
    rows = [
        [
            name,
            *(_gap(found, f"{pair}_{field}") for field in ("mean", "p50", "p99", "largest")),
            f"{float(found[f'{pair}_equal']):.0%}",
            _gap(found, f"{PAIRS[pair][0]}_sampled_again"),
        ]
        for pair, name in _pairs(found)
    ]
    heads = "engine and trainer|mean|median|99 %|largest|equal tokens|engine against its own scores"
    return _table(heads.split("|"), *rows)


def places(found: Recorded) -> str:
    """Each pair by position and by length."""
    columns = [("before", end, f"position to {end}") for end in POSITIONS]
    columns += [("rows_to", end, f"rows to {end}") for end in LENGTHS]
    rows = [
        [name, *(_gap(found, f"{pair}_{kind}_{end}") for kind, end, _ in columns)]
        for pair, name in _pairs(found)
    ]
    return _table(["engine and trainer", *(head for *_, head in columns)], *rows)


TABLES = {"costs": costs, "gaps": gaps, "places": places}


def filled(text: str, found: Recorded) -> str:
    """The page with its tables again. KeyError for a table that there is not."""
    return filled_with(text, found, TABLES)


def recorded() -> dict[str, float | str]:
    """The figures of the last whole run."""
    return figures_in(RECORDED)


def main(page: Path = PAGE) -> int:
    """Entry point."""
    before = page.read_text(encoding="utf-8")
    if (after := filled(before, recorded())) != before:
        page.write_text(after, encoding="utf-8")
        sys.stdout.write(f"wrote {page.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
