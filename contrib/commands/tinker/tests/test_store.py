"""Folders of what clients save: none of their names leads out of the server's directory."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext
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


def test_what_is_saved_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the order of the calls: all files and their folder, then the name, then the folders that hold it."""
    store, calls = Store(tmp_path / "saved"), list[int | str]()
    fsync, rename = os.fsync, os.rename
    final = store.folder("a", "weights", "name")

    def flushed(handle: int) -> None:
        calls.append(os.fstat(handle).st_ino)
        fsync(handle)

    def renamed(old: Path, new: Path) -> None:
        calls.append(new.name)
        rename(old, new)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "rename", renamed)
    for text in ("first", "second"):
        folder = store.begin("a", "weights", "name", True)
        (folder / "model").write_text(text)
        with pytest.raises(Refused) if text == "first" else nullcontext():
            store.find("tinker://a/weights/name", "weights")
        calls.clear()
        store.finish(folder, Saved("a", "weights", "name", "base", 0, 1, 2.0))
        assert store.find("tinker://a/weights/name", "weights")[1] == final
        assert (final / "model").read_text() == text
        named = calls.index("name")
        content = [final, *final.iterdir()]
        assert {path.stat().st_ino for path in content} == set(calls[: len(content)])
        holders = (final.parent, final.parent.parent, store.directory, tmp_path)
        assert [path.stat().st_ino for path in holders] == calls[named + 1 :]
    assert [path.name for path in final.parent.iterdir()] == ["name"]


def test_what_was_being_replaced_when_the_server_ended_is_there_again(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kept, both = saved(store, "a", "kept"), saved(store, "a", "both")
    folder = tmp_path / "a" / "weights"
    (folder / "kept").rename(folder / ".kept.replaced")
    shutil.copytree(folder / "both", folder / ".both.replaced")
    store.begin("a", "weights", "begun", False)
    found = Store(tmp_path).of_model("a")
    assert sorted(found, key=lambda each: each.name) == [both, kept]
    assert not list(folder.glob(".*.replaced"))


def test_what_expires_is_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    kept = saved(store, "a", "kept")
    saved(store, "a", "gone")
    store.expire("a", "weights", "kept", 3600)
    store.expire("a", "weights", "gone", -1)
    (tmp_path / "a" / "weights" / "damaged").mkdir()
    (tmp_path / "a" / "weights" / "damaged" / "about.json").touch()
    assert [each.name for each in store.of_model("a")] == ["kept"]
    store.remove_expired()
    left = {path.name for path in (tmp_path / "a" / "weights").iterdir()}
    assert left == {"kept", "damaged"}
    store.expire("a", "weights", "kept", None)
    assert store.of_model("a") == [kept]
    with pytest.raises(Refused, match="nothing saved as weights/gone"):
        store.expire("a", "weights", "gone", None)
