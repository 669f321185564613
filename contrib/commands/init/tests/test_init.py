"""What it writes is a configuration that the core accepts, for every recipe and any hardware."""

from __future__ import annotations

import argparse
import ast
import json
import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow_contrib_init import choices as questions
from astraflow_contrib_init.choices import RECIPES, Choices
from astraflow_contrib_init.command import add_arguments
from astraflow_contrib_init.configuration import configuration
from astraflow_contrib_init.text import table
from astraflow_core.errors import UserError
from astraflow_runtime.config.loading import load_config


def init(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed = parser.parse_args(arguments)
    code: int = parsed.command(parsed)
    return code


def rows(path: Path, *entries: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A path that a configuration may name; it is not loaded here."""
    return str(tmp_path / "model")


@pytest.mark.parametrize("gpus", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("recipe", RECIPES)
def test_generated_prompts(
    recipe: str, gpus: int, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert init("first.toml", "--recipe", recipe, "--gpus", str(gpus), "--model", model) == 0
    config = load_config(tmp_path / "first.toml", []).config
    assert config.run.name == "first" and config.run.steps == 100
    assert config.run.colocated == (gpus == 1)
    solver = config.policies["solver"]
    assert solver.engine.use == ("vllm" if gpus else "torch")
    assert solver.batch_sequences % config.run.group_size == 0
    held_out = config.eval.sets["held_out"]
    assert held_out.use == config.prompts.use
    table = tomllib.loads((tmp_path / "first.toml").read_text())
    assert table["eval"]["sets"]["held_out"]["split"] == "held_out"
    assert table["prompts"]["split"] == "train"


@pytest.mark.parametrize("reward", ["exact", "scoring:score"])
def test_another_reward(
    reward: str, tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scoring.py").write_text("def score(view):\n    return 1.0\n")
    assert init("--recipe", "math", "--reward", reward, "--model", model) == 0
    config = load_config(tmp_path / "run.toml", []).config
    assert config.reward is not None and config.reward.use == reward


@pytest.mark.parametrize(("gpus", "ranks", "devices"), [(2, None, ["1"]), (5, 2, ["2", "3", "4"])])
def test_trainer_and_engines_share_no_gpu(
    gpus: int, ranks: int | None, devices: list[str], tmp_path: Path
) -> None:
    chosen = Choices("math", "x", "m", None, gpus, 1)
    text = configuration(chosen, tmp_path / "x.toml")[tmp_path / "x.toml"]
    solver = tomllib.loads(text)["policies"]["solver"]
    assert solver["engine"]["devices"] == devices
    assert solver["engine"]["replicas"] == len(devices)
    assert solver["trainer"].get("ranks") == ranks


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "search"])
def test_own_rows(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = rows(tmp_path / "mine.jsonl", {"prompt": "2 + 2", "answer": "4", "tests": []})
    assert init("own.toml", "--recipe", recipe, "--data", str(data)) == 0
    table = tomllib.loads((tmp_path / "own.toml").read_text())
    for source in (table["prompts"], table["eval"]["sets"]["held_out"]):
        assert source["use"] == "split"
        assert source["source"]["use"] == "jsonl"
        assert source["source"]["path"] == "mine.jsonl", (
            "relative to the file, so that both move together"
        )
    load_config(tmp_path / "own.toml", [])


def test_own_passages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "wiki"
    folder.mkdir()
    rows(folder / "questions.jsonl", {"question": "Who?", "answers": ["I"]})
    with pytest.raises(UserError, match=r"missing: passages\.jsonl"):
        init("own.toml", "--recipe", "search", "--data", "wiki")
    rows(folder / "passages.jsonl", {"title": "I", "text": "I."})
    assert init("own.toml", "--recipe", "search", "--data", "wiki") == 0
    config = tomllib.loads((tmp_path / "own.toml").read_text())
    assert config["prompts"]["source"] == {"use": "search_folder", "path": "wiki"}
    load_config(tmp_path / "own.toml", [])


def test_the_agent_is_a_function_of_one_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert init("--recipe", "chat-agent") == 0
    tree = ast.parse((tmp_path / "agent.py").read_text())
    play = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    assert play.name == "play" and len(play.args.args) == 1
    (tmp_path / "run.toml").unlink()
    with pytest.raises(UserError, match=r"agent\.py exists"):
        init("--recipe", "chat-agent")
    assert not (tmp_path / "run.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--recipe is missing"),
        (["--recipe", "math", "--gpus", "9"], "expected 0"),
        (["--recipe", "math", "--gpus", "-1"], "expected 0"),
        (["--recipe", "math", "--steps", "0"], "at least 1"),
        (["--recipe", "math", "--name", "a b"], "expected letters"),
        (["--recipe", "math", "--name", ""], None),
        (["--recipe", "math", "--model", " "], "--model is empty"),
        (["--recipe", "math", "--reward", "exakt"], "did you mean 'exact'?"),
        (["--recipe", "search", "--reward", "exact"], "has the rewards of its environment"),
        (["--recipe", "math", "--data", "nowhere.jsonl"], "no such file"),
        (["--recipe", "math", "--data", "notes.txt"], "expected a file that ends in"),
        (["run.json", "--recipe", "math"], r"ends in \.toml"),
        (["no/run.toml", "--recipe", "math"], "no folder no"),
    ],
)
def test_mistakes(
    arguments: list[str], told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").touch()
    if told is None:
        assert init(*arguments) == 0, "an empty name is that of the file"
        return
    with pytest.raises(UserError, match=told):
        init(*arguments)
    assert list(tmp_path.iterdir()) == [tmp_path / "notes.txt"]


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text("mine")
    with pytest.raises(UserError, match=r"run\.toml exists"):
        init("--recipe", "math")
    assert (tmp_path / "run.toml").read_text() == "mine"


def test_questions_are_asked_until_an_answer_fits() -> None:
    asked: list[str] = []
    answers = iter(["7", "fish", "2", "gpu", "99", "3", "/nowhere", "", "", "exakt", "exact"])

    def ask(question: str) -> str:
        asked.append(question)
        return next(answers)

    assert questions.ask_recipe(ask) == "code"
    assert questions.ask_gpus(ask) == 3
    assert questions.ask_data(ask, "code") is None
    assert questions.ask_model(ask) == questions.DEFAULT_MODEL
    assert questions.ask_reward(ask, "math") == "exact"
    assert "no reward 'exakt' is installed; did you mean 'exact'?" in asked[-1]
    assert questions.ask_reward(ask, "search") is None
    assert "'fish' is not one of them" in asked[2]


def test_it_asks_on_a_terminal(tmp_path: Path) -> None:
    """A whole conversation with the command on a real terminal."""
    ours, theirs = pty.openpty()
    try:
        os.write(ours, b"4\n\n\n\n0\n")
        ended = subprocess.run(
            [sys.executable, "-m", "astraflow_runtime", "init"],
            cwd=tmp_path,
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(theirs)
        os.close(ours)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "agent.py").is_file()
    assert "chat-agent" in (tmp_path / "run.toml").read_text()


@pytest.mark.slow
def test_the_doctor_finds_nothing_wrong(tmp_path: Path) -> None:
    """For each recipe for a CPU, with the packages of the test environment."""
    for recipe in RECIPES:
        folder = tmp_path / recipe
        folder.mkdir()
        for command in (["init", "--recipe", recipe], ["doctor", "run.toml", "--static"]):
            ended = subprocess.run(
                [sys.executable, "-m", "astraflow_runtime", *command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            assert ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_quoted(text: str) -> None:
    assert tomllib.loads(table("x", "", {"key": (text, "a remark")})) == {"x": {"key": text}}
