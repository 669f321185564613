"""The libraries of the pages are those that npm has, unchanged."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tarfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

VENDOR = Path(str(files("astraflow_contrib_pages"))) / "static" / "vendor"
MANIFEST: list[dict[str, Any]] = json.loads((VENDOR / "manifest.json").read_text())


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_the_manifest_names_every_file_and_what_is_in_it() -> None:
    licences = {name for entry in MANIFEST for name in entry["licence_files"]}
    named = {entry["file"] for entry in MANIFEST} | licences | {"manifest.json"}
    assert {file.name for file in VENDOR.iterdir()} == named
    for entry in MANIFEST:
        assert sha256((VENDOR / entry["file"]).read_bytes()) == entry["sha256"], entry["file"]
        assert entry["version"] and entry["licence"]
    assert all((VENDOR / name).stat().st_size > 500 for name in licences)


@pytest.mark.backend
@pytest.mark.parametrize("package", sorted({entry["package"] for entry in MANIFEST}))
def test_npm_has_the_same_files(package: str, tmp_path: Path) -> None:
    entries = [entry for entry in MANIFEST if entry["package"] == package]
    (version,) = {entry["version"] for entry in entries}
    command = ["npm", "pack", f"{package}@{version}", "--silent"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=120, capture_output=True)
    (archive,) = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as packed:
        for entry in entries:
            member = packed.extractfile(f"package/{entry['path']}")
            assert member is not None and sha256(member.read()) == entry["sha256"], entry["file"]
