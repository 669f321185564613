"""The newest client of Tinker, unmodified and in an interpreter of its own, against ``astraflow tinker serve``."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agent_clients.environment import interpreter_with

from astraflow_testing.runs import User

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.turns(
        "contrib/commands/tinker/src/**/*.py",
        "examples/tinker/*.py",
        "tests/agent_clients/environment.py",
        "tests/agent_clients/tinker*",
        "tests/agent_clients/peft.txt",
        unit="tinker client",
    ),
]

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples" / "tinker" / "train.py"
TORCH = ("torch", "torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe")
"""With what it imports; the client has the rest."""
OLD = ("0.25.0", "0.30.0")
STEPS = 8
SCRIPT_S = 500
KILLED_AT = 3
"""A step of tests/agent_clients/tinker_restart.py."""


@pytest.fixture(scope="module")
def python() -> str:
    return interpreter_with(HERE / "agent_clients" / "tinker.txt")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server, as what it prints says; it ends with Ctrl-C and leaves nothing but what was saved by name."""
    user = User(tmp_path_factory.mktemp("tinker"))
    try:
        process = user.start("tinker", "serve", "--listen", "127.0.0.1:0", "--models", "8")
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert lines[0].startswith("astraflow/tiny for Tinker clients"), user.last_words()
        yield dict(re.findall(r"^export (\w+)=(\S+)$", "".join(lines), re.MULTILINE))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", "")
        assert user.left_running() == []
        kept = {file.name for file in (user.directory / "tinker").iterdir()}
        assert all(".train." in name for name in kept - {"audit.jsonl"}), kept
    finally:
        user.close()


def script(python: str, environment: dict[str, str], *command: str | Path) -> str:
    done = subprocess.run(
        [python, *map(str, command)], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=SCRIPT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def lent_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the torch of these tests, for the client's own losses: a further one would be a large download."""
    folder = tmp_path_factory.mktemp("torch")
    for name in TORCH:
        found = importlib.util.find_spec(name)
        assert found is not None and found.submodule_search_locations
        (folder / name).symlink_to(found.submodule_search_locations[0])
    return folder


def test_a_script_trains_samples_saves_and_reads_errors(
    python: str, served: dict[str, str], lent_torch: Path, tmp_path: Path
) -> None:
    served = {**served, "PYTHONPATH": str(lent_torch)}
    play = HERE / "agent_clients" / "tinker_play.py"
    out = script(python, served, play, str(STEPS), tmp_path)
    told: dict[str, Any] = json.loads(out)
    rewards = told["full"]
    assert rewards[0] < 0.2 and rewards[-1] > 0.9, rewards
    assert told["model"] == "astraflow/tiny"
    assert told["adapters"]["is_lora"] and told["adapters"]["rank"] == 4
    assert told["greedy"] == [7, 7, 7, 7] and told["stopped"] == ["stop", [7]]
    first, *others = told["prompt"]
    assert first is None and others[-1] == pytest.approx(0, abs=0.2) and told["follows"] == 2
    custom = told["custom"]
    assert custom["fell"] == pytest.approx(custom["expected"], rel=0.02) and custom["margin"] > 0
    assert custom["expected"] > 1e-3  # far above the rounding of losses in float32
    assert custom["handed"] == pytest.approx(custom["named"], rel=1e-5)
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
    assert len(told["runs"]) == 5 and [lora for _, lora in told["runs"]].count(False) == 2
    other_programs_compute_the_same(told["exported"], tmp_path)


def other_programs_compute_the_same(exported: dict[str, Any], folder: Path) -> None:
    """Transformers and PEFT, in float64, from the files that the client fetched."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    environment = Path(interpreter_with(HERE / "agent_clients" / "peft.txt")).parent.parent
    (packages,) = environment.glob("lib/python*/site-packages")
    sys.path.append(str(packages))
    try:
        peft = importlib.import_module("peft")
    finally:
        sys.path.remove(str(packages))
    base = AutoModelForCausalLM.from_pretrained(
        exported["adapters"]["tokenizer"], dtype=torch.float64
    )
    models = {
        "full": AutoModelForCausalLM.from_pretrained(folder / "full", dtype=torch.float64),
        "adapters": peft.PeftModel.from_pretrained(base, folder / "adapters"),
    }
    tokens = torch.tensor([[1, 2, 3, 7, 7]])
    for name, model in models.items():
        with torch.no_grad():
            logprobs = model(input_ids=tokens).logits[0].log_softmax(-1)
        found = logprobs[:-1].gather(1, tokens[0, 1:, None])[:, 0].tolist()
        assert found == pytest.approx(exported[name]["logprobs"][1:], abs=1e-5), name
    assert len(AutoTokenizer.from_pretrained(folder / "full")) > 7
    files = {path.name for path in (folder / "adapters").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}


def test_the_example_runs_through(python: str, served: dict[str, str]) -> None:
    small = ("--steps", "2", "--prompts", "4", "--samples", "8", "--held-out", "4")
    out = script(python, served, EXAMPLE, *small)
    assert re.findall(r"^(step \d|held out):", out, re.MULTILINE) == [
        "step 0",
        "step 1",
        "held out",
    ]


@pytest.mark.parametrize("version", OLD)
def test_older_clients(version: str, served: dict[str, str], tmp_path: Path) -> None:
    newest = (HERE / "agent_clients" / "tinker.txt").read_text(encoding="utf-8")
    file = tmp_path / f"tinker-{version}.txt"
    text, count = re.subn(r"^tinker==.*", f"tinker=={version}", newest, flags=re.MULTILINE)
    assert count == 1
    file.write_text(text, encoding="utf-8")
    out = script(interpreter_with(file), served, HERE / "agent_clients" / "tinker_old.py")
    told: dict[str, Any] = json.loads(out)
    assert told["version"] == version and told["greedy"] == [7, 7, 7, 7]
    assert told["fell"] > 1 and told["moved"] > 0  # a state that is loaded takes the last step back
    assert "unknown loss_fn 'nothing': known are cross_entropy" in told["said"]


def test_a_wrong_key_is_refused(python: str, served: dict[str, str]) -> None:
    code = "import tinker; tinker.RestClient().get_server_capabilities().result()"
    done = subprocess.run(
        [python, "-c", code], env={**served, "TINKER_API_KEY": "tml-wrong"}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode != 0 and "is not that of this server" in done.stderr


def test_a_script_goes_on_when_its_server_was_killed(python: str, tmp_path: Path) -> None:
    """It holds a gradient then, of the second step since a state; its losses are those of a run that nothing ended."""
    user = User(tmp_path)
    try:
        process, environment = started(user, "127.0.0.1:0")
        place = environment["TINKER_BASE_URL"].removeprefix("http://")
        environment["TINKER_API_KEY"] = (tmp_path / "key").read_text(encoding="ascii").strip()
        client = subprocess.Popen(
            [python, str(HERE / "agent_clients" / "tinker_restart.py")], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None
        told: dict[str, list[Any]] = {"whole": [], "killed": []}
        for line in client.stdout:
            name, step, values = json.loads(line)
            told[name].append([step, values])
            if (name, step) == ("killed", KILLED_AT):
                process.kill()
                process.wait(timeout=60)
                client.stdin.write("\n")  # it tries again until there is a server
                client.stdin.flush()
                process, _ = started(user, place)
        assert client.wait(timeout=60) == 0, client.communicate()[1][-4000:]
        assert len(told["whole"]) == 6 and told["killed"] == told["whole"]
        assert list((tmp_path / "tinker" / "running").iterdir()) == []
    finally:
        client.kill()
        user.close()


def started(user: User, place: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """A server that keeps its models, and what it prints."""
    keep = ("--keep-every", "2", "--token-file", "key")
    process = user.start("tinker", "serve", "--listen", place, *keep)
    assert process.stdout is not None
    lines = []
    while not lines or "TINKER_API_KEY" not in lines[-1]:
        lines.append(process.stdout.readline())
        assert lines[-1], user.last_words()
    return process, dict(re.findall(r"^export (\w+)=(\S+)$", "".join(lines), re.MULTILINE))
