"""Games of the real TextWorld, beside the same ones played by TextWorld alone."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from agent_clients.environment import interpreter_with

from astraflow_core.errors import PromptError
from astraflow_core.types import Action, Observation, Outcome, Prompt
from astraflow_testing.conformance.environment import Acts, EnvironmentConformance, guess
from astraflow_testing.conformance.subject import Subject, context, installed
from astraflow_testing.runs import User

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.turns(
        "contrib/textworld/src/**/*.py",
        "libs/environments/src/**/*.py",
        "testing/src/astraflow_testing/conformance/environment.py",
        "tests/agent_clients/environment.py",
        "tests/agent_clients/textworld.txt",
        unit="textworld",
    ),
    # Its category is a class of jericho, which a process that collects warnings of workers cannot import.
    pytest.mark.filterwarnings("ignore:Game .* is not fully supported"),
]

HERE = Path(__file__).parent
SMALL = {"world_size": 2, "nb_objects": 2, "quest_length": 1}
MADE = (
    Prompt("custom", {"kind": "custom", "settings": SMALL, "seed": 7}),
    Prompt("coin", {"kind": "tw-coin_collector", "settings": {"level": 2}, "seed": 5}),
)


@pytest.fixture(scope="session")
def python() -> str:
    """An interpreter with TextWorld, which also imports the packages of this one."""
    path = Path(interpreter_with(HERE / "agent_clients" / "textworld.txt"))
    (packages,) = path.parent.parent.glob("lib/python*/site-packages")
    ours = next(folder for folder in sys.path if Path(folder).name == "site-packages")
    (packages / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def textworld(python: str) -> Iterator[None]:
    """Its modules are found in this process, behind our own, and games that are made are kept beside it."""
    home = Path(python).parent.parent
    before = list(sys.path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTRAFLOW_CACHE", str(home / "games"))
        sys.path += [str(folder) for folder in home.glob("lib/python*/site-packages")]
        yield
    sys.path[:] = before


def admissible(observation: Observation) -> list[str]:
    listed = str(observation.messages[0]["content"]).rpartition("Possible: ")[2]
    return listed.split(", ")


class TestTextWorld(EnvironmentConformance):
    @pytest.fixture
    def component(self) -> Subject:
        tools = {"actions": "tools", "turns": 4, "show_actions": False, "rewards": "points"}
        return installed("environment", "textworld", {"turns": 6}, tools)

    @pytest.fixture
    def tasks(self) -> list[Prompt]:
        return list(MADE)

    @pytest.fixture
    def acts(self) -> Acts:
        def act(observation: Observation, generator: random.Random) -> Action:
            if observation.tools or generator.random() < 0.2:
                return guess(observation, generator)
            return Action(generator.choice(admissible(observation)))

        return act


def built(**keys: Any) -> Any:
    subject = installed("environment", "textworld", keys)
    (factory,) = subject.variants.values()
    return factory(context("raas", Path("/nonexistent")))


def file_of(prompt: Prompt) -> Path:
    from astraflow_contrib_textworld.making import made_game

    return made_game("a test", prompt.data["kind"], prompt.data["settings"], prompt.data["seed"])


@pytest.mark.parametrize("prompt", MADE, ids=lambda prompt: prompt.id)
def test_games_are_those_of_textworld(prompt: Prompt) -> None:
    import textworld

    infos = textworld.EnvInfos(admissible_commands=True, policy_commands=True, max_score=True)
    bare, ours = textworld.start(str(file_of(prompt)), infos), built(turns=60)
    for generator in (None, random.Random(1), random.Random(2)):
        seen, state = ours.reset(prompt, 3), bare.reset()
        assert state.objective in str(seen.messages[0]["content"])
        assert "$" not in str(seen.messages[0]["content"]), "the banner"
        winning, total = list(state.policy_commands), 0.0
        while seen.outcome is None:
            assert admissible(seen) == state.admissible_commands
            command = generator.choice(state.admissible_commands) if generator else winning.pop(0)
            before = state.score
            state, score, done = bare.step(command)
            seen = ours.step(Action(f"I try it.\n> {command}"))
            told = str(seen.messages[0]["content"])
            first = next(line for line in state.feedback.splitlines() if line.strip())
            assert told.startswith(first.strip()) and "-=" not in told.rpartition("\n>")[2][-20:]
            assert seen.reward == (score - before) / state.max_score
            assert (seen.outcome is Outcome.FINISHED) == done
            total += seen.reward
        assert seen.metrics["won"] == state.won and seen.metrics["score"] == total
        assert generator is not None or (total == 1 and not winning)
    bare.close()
    ours.close()


def test_no_command_writes_a_file_or_ends_the_game(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    game = built(turns=60)
    first = game.reset(MADE[1], 0)
    hostile = ["save", "look, save", "look. script", "take coin then restart", "quit", "yes", "a\0b", "é" * 150, "oops save"]  # fmt: skip
    for command in [*hostile, "x" * 199, "go " * 60, "take all and save", "look save"]:
        seen = game.step(Action(command))
        assert seen.outcome is None and admissible(seen) == admissible(first)
    assert list(tmp_path.iterdir()) == []
    game.close()


def test_settings_that_textworld_refuses_are_reported() -> None:
    wrong = Prompt("p", {"kind": "tw-simple", "settings": {"goal": "none", "rewards": "much"}})
    with pytest.raises(PromptError, match=r"prompt 'p': TextWorld refuses `tw-make tw-simple .*`: argument --rewards: invalid choice: 'much'"):  # fmt: skip
        built().reset(wrong, 1)


def test_the_example_trains(user: User, python: str, tmp_path: Path) -> None:
    games = tmp_path / "games"
    games.mkdir()
    for prompt in MADE:
        for suffix in (".z8", ".json"):
            made = file_of(prompt).with_suffix(suffix)
            (games / made.name).symlink_to(made)
    source = f"{{ use = 'textworld_folder', path = '{games}' }}"
    printable = quote("".join(map(chr, range(32, 127))) + "\n", safe="")
    model = f"tiny:qwen3?hidden=8&layers=1&heads=1&kv_heads=1&context=16384&alphabet={printable}"
    overrides = (
        "run.steps=1", "run.group_size=4", "sampling.max_tokens=4", "workflow.environment.turns=2",
        "workflow.most_environments=2", f"workflow.worker_python={python}", f"prompts={source}",
        f"eval.sets.held_out={source}", "policies.player.data=[]", "policies.player.batch_sequences=8",
        f"policies.player.model={model}",
        "policies.player.engine={ use = 'astraflow_testing.table:TableEngine', context = 16384 }",
        "policies.player.trainer={ use = 'astraflow_testing.table:TableTrainer' }",
        "policies.player.algorithm={ use = 'astraflow_testing.table:TableAlgorithm' }",
    )  # fmt: skip
    arguments = [part for override in overrides for part in ("--set", override)]
    ended = user.astraflow("run", HERE.parent / "examples" / "textworld.toml", *arguments, deadline_s=280)  # fmt: skip
    assert ended.exit_code == 0, ended.text
    assert ended.summary["steps"] == 1 and ended.summary["failed"] == 0, ended.summary
    assert "won" in ended.text and user.left_running() == []
    done = subprocess.run([python, "-c", "import spacy"], capture_output=True, text=True)
    assert "No module named 'spacy'" in done.stderr
