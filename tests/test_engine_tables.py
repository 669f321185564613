"""The READMEs of the engines hold the figures that were recorded."""

from __future__ import annotations

import pytest
from bench.support import engine_tables
from bench.support.engine_tables import READMES, filled, recorded


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_the_figures_of_a_readme_are_those_that_were_recorded(readme) -> None:
    text = readme.read_text(encoding="utf-8")
    assert "<!-- recorded: speeds -->" in text
    assert filled(text, recorded()) == text, "python -m bench.support.engine_tables fixes that"


def test_figures_take_the_places_of_older_ones() -> None:
    found = {"date": "2030-01-02", "cores": 8, "python": "3.14.0"}
    found |= {
        "hf_tokens_s": 12.6,
        "hf_swap_s": 0.0123,
        "tiny_vllm_swap_s": 2,
        "raas_over_bare": 0.987,
    }
    text = "a\n<!-- recorded: speeds -->\nold\n<!-- end -->\nb\n<!-- recorded: beside -->\n<!-- end -->\n"
    new = filled(text, found)
    assert filled(new, found) == new and "old" not in new
    assert new.startswith("a\n") and "\n<!-- end -->\nb\n" in new
    assert "Recorded 2030-01-02 on 8 cores, Python 3.14.0:" in new
    assert "| `hf` | 13 | 0.012 | not recorded | not recorded |" in new
    assert "| `vllm` | not recorded | not recorded | not recorded | 2.000 |" in new
    assert "over the bare server's | 0.99 | not recorded |" in new


def test_the_command_writes_what_is_stale_and_nothing_else(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(engine_tables, "ROOT", tmp_path)
    stale, fresh = tmp_path / "stale.md", tmp_path / "fresh.md"
    stale.write_text("<!-- recorded: speeds -->\n<!-- end -->\n")
    fresh.write_text("no table\n")
    assert engine_tables.main((stale, fresh)) == 0
    assert capsys.readouterr().out == "wrote stale.md\n"
    assert "`torch`" in stale.read_text()
