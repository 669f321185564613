"""Folders of what clients save: none of their names leads out of the server's directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_contrib_tinker.work.store import Saved, Store
from astraflow_core.errors import Refused


def saved(store: Store, model: str, name: str) -> Saved:
    folder = store.begin(model, "weights", name, False)
    return store.finish(folder, Saved(model, "weights", name, "base", 0, 1, 2.0))


def test_what_is_saved_is_found_by_its_path(tmp_path: Path) -> None:
    store = Store(tmp_path / "saved")
    kept = saved(store, "a1:train:0", "step-1.final")
    found, folder = store.find("tinker://a1:train:0/weights/step-1.final", "weights")
    assert found == kept and folder.is_relative_to(tmp_path / "saved")
    assert store.of_model("a1:train:0") == [kept]


@pytest.mark.parametrize("model", ["..", ".", "a.b", "*", "", "-a", "a/../..", "a" * 201])
def test_no_model_leads_out_of_the_directory(tmp_path: Path, model: str) -> None:
    outside = Store(tmp_path)
    saved(outside, "weights", "secret")
    (tmp_path / "weights" / "weights").rename(tmp_path / "weights-of-another")
    store = Store(tmp_path / "saved")
    for act in (
        lambda: store.begin(model, "weights", "name", True),
        lambda: store.find(f"tinker://{model}/weights/secret", "weights"),
        lambda: store.remove(model, "weights", "secret"),
        lambda: store.of_model(model),
    ):
        with pytest.raises(Refused):
            act()
    assert (tmp_path / "weights-of-another" / "secret" / "about.json").exists()


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", "", "a" * 101])
def test_no_name_leads_out_of_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match="expected letters, digits"):
        Store(tmp_path).begin("a", "weights", name, True)
