"""The command line starts fast: it does not import the plugins that it lists and explains."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from workspace import HEAVY, components

LIGHT_FORBIDDEN = sorted(
    HEAVY | {"fastapi", "httpx", "matplotlib", "numpy", "pydantic", "starlette", "uvicorn", "zmq"}
)

PROGRAM = """
import json, sys
from importlib.metadata import entry_points

(script,) = entry_points(group="console_scripts", name="astraflow")
main = script.load()
sys.argv = ["astraflow", *sys.argv[1:]]
code = 0
try:
    code = main() or 0
except SystemExit as stop:
    code = stop.code or 0
tops = {name.partition(".")[0] for name in sys.modules}
print("\\n" + json.dumps({"code": code, "modules": sorted(tops)}))
"""


def start(*args: str) -> tuple[str, set[str]]:
    """Run the command line in a fresh interpreter: its output and the top-level modules it loaded."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output, _, report = done.stdout.rstrip().rpartition("\n")
    seen = json.loads(report)
    assert seen["code"] == 0, done.stdout + done.stderr
    return output, set(seen["modules"])


@pytest.mark.parametrize("command", [("--help",), ("plugins",), ("plugins", "--json")])
def test_light_commands_import_nothing_heavy(command: tuple[str, ...]) -> None:
    output, modules = start(*command)
    assert output.strip(), "said nothing"
    assert modules & set(LIGHT_FORBIDDEN) == set()


def test_plugins_lists_every_component_of_the_workspace() -> None:
    output, _ = start("plugins")
    missing = {c.name for c in components() if c.name not in output}
    assert missing == set()


def test_importing_the_core_imports_nothing_heavy() -> None:
    code = "import sys, astraflow_core; print(*{n.partition('.')[0] for n in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    assert set(done.stdout.split()) & set(LIGHT_FORBIDDEN) == set()
