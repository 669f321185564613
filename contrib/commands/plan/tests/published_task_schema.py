"""The schema of SkyPilot's task files, computed by the code of its wheel."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

REQUIREMENT = "skypilot==0.14.1"
DOWNLOAD_S = 120
_PROGRAM = """
import json, sys, types
from unittest.mock import MagicMock
folder, version = sys.argv[1:]
for name in ("sky", "sky.skylet", "sky.utils"):  # without their __init__, which import what a client needs
    module = types.ModuleType(name)
    module.__path__ = [folder + "/" + name.replace(".", "/")]
    module.__version__ = version
    sys.modules[name] = module
for name in ("sky.skylet.autostop_lib", "sky.server"):
    sys.modules[name] = MagicMock()
from sky.utils import schemas
whole = schemas.get_task_schema()
whole["properties"]["resources"] = schemas.get_resources_schema()
print(json.dumps(whole, default=str))
"""


def task_schema() -> dict[str, Any]:
    """That of a task with one table of resources."""
    with tempfile.TemporaryDirectory(prefix="skypilot-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", REQUIREMENT]
        subprocess.run(command, cwd=folder, check=True, timeout=DOWNLOAD_S)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        version = REQUIREMENT.partition("==")[2]
        text = subprocess.check_output(
            [sys.executable, "-c", _PROGRAM, folder, version], timeout=DOWNLOAD_S, text=True
        )
    found: dict[str, Any] = json.loads(text)
    return found
