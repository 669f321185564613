from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from published_reports import content, named, wheel_of, with_plugin


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.json").write_bytes(content())
    (folder / "sub" / "older.json").write_bytes(content(**named("astraflow-plugin-brevity", "1.9")))
    later = with_plugin(name="later", api=[1, 1], commands=[])
    told = "Name: later\nVersion: 1.0\nProject-URL: Code, https://example.org/later\n\n# Later\n"
    file = folder / "later-1.0-py3-none-any.whl"
    wheel_of(file, told, plugins=later, core_api=[1, 1], **named("later"))
    return folder
