"""Views that plugins have of a trajectory: checked data, for runs that name the plugin, and never more than that."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from served_runs import Pages, write_run
from stored_groups import store

from astraflow_contrib_pages.plugin_views import PluginViews, checked
from astraflow_contrib_pages.views.process import ViewsProcess

HOSTILE = "<script>alert(1)</script>"


def png(width: int = 2, height: int = 2) -> bytes:
    """A grey picture, written by hand."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        crc = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + crc

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 0, 0, 0, 0])
    rows = zlib.compress(b"".join(b"\0" + b"\x80" * width for _ in range(height)))
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    )


def test_views_are_plain_data() -> None:
    image = checked({"kind": "image", "title": "map", "png": png(), "alt": "two by two"})
    assert image["src"].startswith("data:image/png;base64,iVBOR") and image["alt"] == "two by two"
    facts = checked(
        {"kind": "facts", "title": "x" * 9999, "facts": {"won": True, HOSTILE: HOSTILE}}
    )
    assert len(facts["title"]) == 500 and facts["facts"][HOSTILE] == HOSTILE
    grid = checked({"kind": "grid", "title": "g", "rows": [["@", "."]], "colours": {"@": 7}})
    assert grid["rows"] == [["@", "."]]


@pytest.mark.parametrize(
    ("view", "problem"),
    [
        ({"kind": "html", "title": "t", "html": HOSTILE}, "html"),
        ({"kind": "table", "title": "t", "columns": ["a"], "rows": [[1, 2]]}, "as long as the 1"),
        ({"kind": "table", "title": "t", "columns": ["a"], "rows": [[1]] * 501}, "501 rows; at most 500"),
        ({"kind": "table", "title": "t", "columns": ["a"], "rows": [[{}]]}, "rows"),
        ({"kind": "grid", "title": "t", "rows": [["a"] * 65]}, "65 columns"),
        ({"kind": "grid", "title": "t", "rows": [["a"]], "labels": ["1", "2"]}, "2 labels for 1 rows"),
        ({"kind": "grid", "title": "t", "rows": [["a"]], "colours": {"a": 8}}, "0 to 7"),
        ({"kind": "image", "title": "t", "png": b"<svg/>", "alt": ""}, "not a PNG"),
        ({"kind": "image", "title": "t", "png": png() + bytes(1 << 20), "alt": ""}, "bytes of an image"),
        ({"kind": "image", "title": "t", "png": png(5000, 1), "alt": ""}, "pixels"),
        ({"kind": "facts", "title": "t", "facts": {}, "onclick": "x"}, "onclick"),
        ("<b>", "object"),
    ],
)  # fmt: skip
def test_what_is_no_view_is_refused(view: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        checked(view)


def test_the_plugin_of_an_environment_shows_its_episodes(
    tmp_path: Path, serve: Callable[[Path], Pages]
) -> None:
    folder = write_run(tmp_path, "one")
    with (folder / "config.toml").open("a") as file:
        file.write('[workflow]\nuse = "environment"\nenvironment = { use = "key_door" }\n')
    store(folder, "..k@.d . Turns left: 3.")
    path = "/ui/api/runs/one/trajectories/train-1"
    pages = serve(tmp_path)
    assert pages.ask(path).json["viewed"] is False  # the run names no plugin
    assert pages.ask(f"{path}/views?index=0").json == {"views": []}
    entry = {"plugin": "text_games", "distribution": "d", "version": "1", "packaged": True, "components": {}}  # fmt: skip
    (folder / "plugins.json").write_text(json.dumps([entry, {**entry, "plugin": "gone"}]))
    pages = serve(tmp_path)
    assert pages.ask(path).json["viewed"] is True
    (view,) = pages.ask(f"{path}/views?index=0").json["views"]
    assert (
        view["kind"] == "grid" and view["rows"] == []
    )  # this message is the policy's, not the environment's
    assert pages.ask(f"{path}/views?index=99").json == {"views": []}
    assert pages.ask("/ui/api/runs/one/trajectories/gone/views").status == 404


VIEWS = """
@hookimpl
def astraflow_views(trajectory):
    import os, time
    print("this is no answer")
    if trajectory["group"] == "hangs":
        time.sleep(60)
    if trajectory["group"] == "dies":
        os._exit(3)
    return [{"kind": "facts", "title": "mine", "facts": {"turns": len(trajectory["turns"])}}]
"""


def test_a_plugin_that_fails_or_hangs_is_named_and_others_are_shown(
    site: Any, manifest: str, tmp_path: Path
) -> None:
    site.add("mine", manifest + VIEWS)
    site.add("other", manifest + VIEWS.replace('== "hangs"', "== 1").replace('== "dies"', "== 1"))
    entries = [{"plugin": name, "distribution": "d", "version": "1", "packaged": True, "components": {}} for name in ("mine", "other")]  # fmt: skip
    (tmp_path / "plugins.json").write_text(json.dumps(entries))
    process = ViewsProcess(2.0)
    views = PluginViews(tmp_path, process)
    assert views.any
    shown = {"kind": "facts", "title": "mine", "facts": {"turns": 0}}
    assert views.of({"group": "one", "turns": []}) == [shown, shown]
    for group, reason in (
        ("hangs", "it took longer than 2 s and was ended"),
        ("dies", "its process exited with 3"),
    ):
        failed, other = views.of({"group": group, "turns": []})
        assert failed["kind"] == "problem" and "plugin mine" in failed["title"], group
        assert failed["reason"] == reason and other == shown
    failed, other = views.of({"group": "one"})
    assert failed["reason"] == other["reason"] == "KeyError: 'turns'"
    assert views.of({"group": "one", "turns": []}) == [shown, shown]
    process.close()
