"""The source of this package, in each form that pip accepts."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.installed.origins import how_to_add, source_of


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, ("toy[x]==1.2",)),
        (
            {"url": "file:///a%20b/toy", "dir_info": {"editable": True}},
            ("-e", "/a b/toy[x]"),
        ),
        ({"url": "file:///a/toy", "dir_info": {}}, ("/a/toy[x]",)),
        (
            {"url": "file:///a/toy-1.2-py3-none-any.whl", "archive_info": {}},
            ("toy[x] @ file:///a/toy-1.2-py3-none-any.whl",),
        ),
        (
            {"url": "https://host/toy", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            ("toy[x] @ git+https://host/toy@c0ffee",),
        ),
    ],
)
def test_each_origin(tmp_path: Path, origin: Any, expected: tuple[str, ...]) -> None:
    distribution = toy(tmp_path, origin)
    assert source_of(distribution, "x") == expected
    assert not any("[" in word for word in source_of(distribution, ""))


def toy(tmp_path: Path, origin: Any) -> metadata.Distribution:
    """As installed from there."""
    info = tmp_path / "toy-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.2\n")
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))
    return metadata.PathDistribution(info)


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "pip install 'toy[x]'"),
        ({"url": "file:///a/toy", "dir_info": {"editable": True}}, "pip install -e '/a/toy[x]'"),
    ],
)
def test_an_extra_comes_from_where_the_rest_came_from(
    tmp_path: Path, origin: Any, expected: str
) -> None:
    assert how_to_add("x", toy(tmp_path, origin)) == expected
