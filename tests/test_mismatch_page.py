"""`docs/mismatch.md` holds the figures that were recorded, and they are counted right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from bench.mismatch import PAIRS, batch_of, distribution
from bench.support import mismatch_tables
from bench.support.mismatch_tables import PAGE, TABLES, filled, recorded


def test_the_page_has_the_figures_that_were_recorded() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- recorded: {name} -->" in text for name in TABLES)
    assert filled(text, recorded()) == text, "python -m bench.support.mismatch_tables fixes that"


def test_the_exact_pair_was_recorded_as_exact() -> None:
    found = recorded()
    assert found["exact_largest"] == found["exact_sampled_again"] == 0 and found["exact_equal"] == 1
    others = [pair for pair in PAIRS if f"{pair}_largest" in found and pair != "exact"]
    assert {"torch_torch", "hf_torch", "torch_fsdp"} <= set(others)
    assert all(found[f"{pair}_largest"] > 0 for pair in others)


def test_a_distribution_is_by_position_and_by_length() -> None:
    prompts = [np.zeros(60, np.int32), np.zeros(100, np.int32)]
    completions = [np.zeros(10, np.int32), np.zeros(100, np.int32)]
    batch = batch_of(prompts, completions, [np.full(n, -1.0, np.float32) for n in (10, 100)])
    theirs = np.full(270, 5.0, np.float32)  # prompts do not count
    theirs[60:70] = -1.5
    theirs[170:270] = -1.0
    theirs[269] = -3.0
    found = distribution("p", batch, theirs)
    assert found["p_mean"] == pytest.approx((10 * 0.5 + 2) / 110)
    assert found["p_largest"] == 2 and found["p_p50"] == 0
    assert found["p_equal"] == pytest.approx(99 / 110)
    assert found["p_before_64"] == 0.5  # of row 0, positions 60 to 64
    assert found["p_before_128"] == pytest.approx(5 * 0.5 / (5 + 29))
    assert found["p_before_320"] == pytest.approx(2 / 7)
    assert (found["p_rows_to_160"], found["p_rows_to_320"]) == (0.5, pytest.approx(0.02))


def test_the_command_writes_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mismatch_tables, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- recorded: gaps -->\nold\n<!-- end -->\nb\n")
    assert mismatch_tables.main(page) == mismatch_tables.main(page) == 0
    assert capsys.readouterr().out == "wrote page.md\n"
    text = page.read_text()
    assert text.startswith("a\n") and text.endswith("<!-- end -->\nb\n") and "old" not in text
    assert "| `torch` and `torch`, `batch_invariant` | 0 | 0 | 0 | 0 | 100% | 0 |" in text
