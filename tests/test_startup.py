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

COMMANDS = (("--help",), ("plugins",), ("plugins", "--json"))
PROGRAM = """
import json, sys
from importlib.metadata import entry_points

(script,) = entry_points(group="console_scripts", name="astraflow")
main = script.load()
for command in json.loads(sys.argv[1]):
    sys.argv = ["astraflow", *command]
    code = 0
    try:
        code = main() or 0
    except SystemExit as stop:
        code = stop.code or 0
    tops = {name.partition(".")[0] for name in sys.modules}
    print("\\n" + json.dumps({"code": code, "modules": sorted(tops)}))
"""


@pytest.fixture(scope="module")
def said() -> dict[tuple[str, ...], tuple[str, set[str]]]:
    """What commands print in a fresh interpreter, one after the other, and the top-level modules that it has loaded then."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(COMMANDS)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    outputs: list[tuple[str, set[str]]] = []
    lines: list[str] = []
    for line in done.stdout.splitlines():
        if line.startswith('{"code": '):
            seen = json.loads(line)
            assert seen["code"] == 0, done.stdout + done.stderr
            outputs.append(("\n".join(lines), set(seen["modules"])))
            lines = []
        else:
            lines.append(line)
    return dict(zip(COMMANDS, outputs, strict=True))


@pytest.mark.parametrize("command", COMMANDS)
def test_light_commands_import_nothing_heavy(
    command: tuple[str, ...], said: dict[tuple[str, ...], tuple[str, set[str]]]
) -> None:
    output, modules = said[command]
    assert output.strip(), "said nothing"
    assert modules & set(LIGHT_FORBIDDEN) == set()


def test_plugins_lists_every_component_of_the_workspace(
    said: dict[tuple[str, ...], tuple[str, set[str]]],
) -> None:
    output, _ = said["plugins",]
    missing = {c.name for c in components() if c.name not in output}
    assert missing == set()


def test_importing_the_core_imports_nothing_heavy() -> None:
    code = "import sys, astraflow_core; print(*{n.partition('.')[0] for n in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True
    )
    assert set(done.stdout.split()) & set(LIGHT_FORBIDDEN) == set()
