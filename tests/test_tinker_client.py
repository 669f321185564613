"""The newest client of Tinker, unmodified and in an interpreter of its own, against ``astraflow tinker serve``."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_clients.environment import interpreter_with

from astraflow_testing.runs import User

pytestmark = [pytest.mark.backend, pytest.mark.slow, pytest.mark.timeout(1200)]

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "tinker" / "train.py"
STEPS = 8
SCRIPT_S = 500


@pytest.fixture(scope="module")
def python() -> str:
    return interpreter_with(HERE / "agent_clients" / "tinker.txt")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server, as what it prints says; it ends with Ctrl-C and leaves nothing but what was saved by name."""
    user = User(tmp_path_factory.mktemp("tinker"))
    try:
        process = user.start("tinker", "serve", "--listen", "127.0.0.1:0")
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[0].startswith("astraflow/tiny for Tinker clients"), user.last_words()
        yield dict(re.findall(r"^export (\w+)=(\S+)$", "".join(lines), re.MULTILINE))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
        assert user.left_running() == []
        kept = {file.name for file in (user.directory / "tinker").iterdir()}
        assert all(".train." in name for name in kept), kept
    finally:
        user.close()


def script(python: str, environment: dict[str, str], *command: str | Path) -> str:
    done = subprocess.run(
        [python, *map(str, command)], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=SCRIPT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_a_script_trains_samples_saves_and_reads_errors(
    python: str, served: dict[str, str]
) -> None:
    out = script(python, served, HERE / "agent_clients" / "tinker_play.py", str(STEPS))
    told: dict[str, Any] = json.loads(out)
    rewards = told["full"]
    assert rewards[0] < 0.2 and rewards[-1] > 0.9, rewards
    assert told["model"] == "astraflow/tiny"
    assert told["adapters"]["is_lora"] and told["adapters"]["rank"] == 4
    assert told["greedy"] == [7, 7, 7, 7] and told["stopped"] == ["stop", [7]]
    first, *others = told["prompt"]
    assert first is None and others[-1] == pytest.approx(0, abs=0.2) and told["follows"] == 2
    states = told["states"]
    assert states["once"] == states["again"] != states["fresh"]
    count, loss = told["chunks"]
    assert count == 2500 and loss == pytest.approx(2500 * told["one"], rel=1e-3)
    said = {
        "model": "this server has 'astraflow/tiny'",
        "loss": "unknown loss_fn 'nothing': known are cross_entropy",
        "shape": "one entry for each token is expected",
        "seed": "seed: engines of this server have none",
        "long": "are more than the 64 tokens of the context",
        "path": "nothing was saved as tinker://a/sampler_weights/b",
        "step": "no gradient is held",
    }
    for name, words in said.items():
        assert words in told["errors"][name], told["errors"]
    assert len(told["runs"]) == 4 and [lora for _, lora in told["runs"]].count(False) == 1


def test_the_example_runs_through(python: str, served: dict[str, str]) -> None:
    small = ("--steps", "2", "--prompts", "4", "--samples", "8", "--held-out", "4")
    out = script(python, served, EXAMPLE, *small)
    assert re.findall(r"^(step \d|held out):", out, re.MULTILINE) == [
        "step 0",
        "step 1",
        "held out",
    ]


def test_a_wrong_key_is_refused(python: str, served: dict[str, str]) -> None:
    code = "import tinker; tinker.RestClient().get_server_capabilities().result()"
    done = subprocess.run(
        [python, "-c", code], env={**served, "TINKER_API_KEY": "tml-wrong"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0 and "is not that of this server" in done.stderr
