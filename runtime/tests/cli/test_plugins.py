"""``astraflow plugins`` lists everything, breaks on nothing, and imports nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from astraflow_core.component import Kind
from astraflow_runtime.cli import main

HEAVY = {
    "torch", "transformers", "pydantic", "numpy", "fastapi", "starlette", "uvicorn", "httpx", "zmq",
    "matplotlib", "rich",
}  # fmt: skip


def test_light_commands() -> None:
    commands = [["plugins", "why", "runtime"], ["doctor"]]
    program = (
        "import sys\n"
        "from astraflow_runtime.cli import main\n"
        f"codes = [main(command) for command in {commands!r}]\n"
        "print('MODULES', *{name.partition('.')[0] for name in sys.modules})\n"
        "sys.exit(any(codes) and f'exit codes {codes}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.rpartition("MODULES ")[2].split())
    assert "astraflow_runtime" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.slow
def test_broken_plugins_are_lines_of_the_list(
    site: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    site.toy()
    site.add("bad", "import nothing_of_this_name", version="3.1")
    assert main(["plugins"]) == 0
    out = capsys.readouterr().out
    assert "toy_engine" in out
    assert "pause.keep, pause.wait, weights.path" in out
    assert "fake-bad 3.1" in out.partition("cannot be used")[2]
    assert main(["plugins", "--json"]) == 0
    records = {record["name"]: record for record in json.loads(capsys.readouterr().out)}
    assert "nothing_of_this_name" in records["bad"]["problem"]
    assert records["bad"]["state"] == "broken"
    assert records["toy"]["problem"] is None
    assert records["toy"]["state"] == "healthy"
    assert records["toy"]["api"] == "1.0"
    kinds = {entry["kind"] for entry in records["toy"]["components"]}
    assert kinds == set(Kind)
    about = {entry["name"]: entry["about"] for entry in records["toy"]["components"]}
    assert about["toy_loss"] == "What the toys are."


def test_a_manifest_that_slows_every_command_is_named(
    site: Any, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = "import time\nend = time.process_time() + 0.25\nwhile time.process_time() < end: pass\n"
    site.add("heavy", manifest + "import slow_backend\n", modules={"slow_backend": busy})
    site.add("light", manifest)
    assert main(["plugins"]) == 0
    told = capsys.readouterr().out.partition("\nslow to import\n")[2]
    assert "heavy   its manifest 'fake_heavy_manifest' takes" in told
    assert "with it come slow_backend" in told and "\nlight" not in told.partition("\n\n")[0]


def test_ambiguous_components_are_reported(
    site: Any, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = "@hookimpl\ndef astraflow_algorithms(): return [Component('twice', 'm:L', 's')]\n"
    for name in ("here", "there"):
        site.add(name, manifest + loss)
    assert main(["plugins"]) == 0
    told = capsys.readouterr().out.partition("\nprovided by several plugins\n")[2].splitlines()
    assert "algorithm twice  here/twice or there/twice  nothing: ambiguous" in told


def test_schema_of_a_component(site: Any, capsys: pytest.CaptureFixture[str]) -> None:
    site.toy()
    assert main(["plugins", "--schema", "data_policy/toy_filter"]) == 0
    schema = json.loads(capsys.readouterr().out)
    ratio = schema["properties"]["ratio"]
    assert (ratio["type"], ratio["default"], ratio["minimum"], ratio["maximum"]) == (
        "number", 0.5, 0, 1,
    )  # fmt: skip
    assert schema["properties"]["by"]["enum"] == ["edf", "fifo"]
    assert schema["title"] == "data_policy/toy/toy_filter"
    assert schema["description"] == "What the toys are."
    assert schema["x-capabilities"] == ["accept"]
    assert schema["x-provided-by"] == "fake-toy 1.0"
    assert main(["plugins", "--schema", "trainer/toy_trainer"]) == 0
    keys = json.loads(capsys.readouterr().out)["properties"]
    assert keys["lr"]["description"] == "Step size."
    assert main(["plugins", "--schema", "reward/toy/toy_match"]) == 0
    assert json.loads(capsys.readouterr().out)["additionalProperties"] is False
    assert main(["plugins", "--schema", "data_polic/toy_filter"]) == 2
    assert "did you mean 'data_policy'?" in capsys.readouterr().err
