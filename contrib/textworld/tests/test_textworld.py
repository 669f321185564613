"""The environment beside a stand-in for TextWorld; the real one is in tests/test_textworld.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from astraflow_contrib_textworld import making
from astraflow_contrib_textworld.config import TextWorldConfig, TextWorldGamesConfig
from astraflow_contrib_textworld.interpreter import environment as recipe
from astraflow_core.errors import EnvironmentFailed, PromptError, UserError
from astraflow_core.types import Action, FunctionCall, Observation, Outcome, Prompt
from astraflow_testing.conformance.subject import context

NOWHERE = context("raas", Path("/nonexistent"))


def built(**keys: Any) -> Any:
    from astraflow_contrib_textworld.environment import TextWorldEnvironment

    return TextWorldEnvironment(TextWorldConfig(**keys), NOWHERE)


def file_of(folder: Path, name: str = "house") -> Prompt:
    for suffix in (".z8", ".json"):
        (folder / f"{name}{suffix}").write_text(name)
    return Prompt("p", {"file": str(folder / f"{name}.z8")})


def text(observation: Observation) -> str:
    (message,) = observation.messages
    return str(message["content"])


def test_points_are_rewards_and_a_game_that_is_won_is_finished(tmp_path: Path, games: Any) -> None:
    game = built(turns=9)
    first = game.reset(file_of(tmp_path), 5)
    assert text(first).endswith(
        "you have 9 turns.\n\nFind the coin.\n-= Attic =-\nIt is dark.\nPossible: open box, take coin"
    )
    looked = game.step(Action("I think\n> LOOK"))
    assert text(looked).startswith("You look.\nPossible:") and looked.reward == 0
    assert game.step(Action("take coin")).reward == 0.5
    won = game.step(Action("Open box."))
    assert won.reward == 0.5 and won.outcome is Outcome.FINISHED
    assert won.metrics == {"won": 1, "lost": 0, "moves": 3, "score": 1}
    assert games[0].said == ["look", "take coin", "open box"] and games[0].seeds == [5]


def test_what_ends_otherwise_keeps_what_it_scored(tmp_path: Path, games: Any) -> None:
    game = built(turns=2, rewards="points", show_actions=False)
    prompt = file_of(tmp_path)
    assert "Possible" not in text(game.reset(prompt, 0))
    assert game.step(Action("take coin")).reward == 1
    lost = game.step(Action("eat coin"))
    assert lost.outcome is Outcome.FINISHED and lost.metrics["lost"] == 1
    assert lost.metrics["score"] == 0.5
    game.reset(prompt, 0)
    game.step(Action(""))
    late = game.step(Action("take coin"))
    assert late.outcome is Outcome.TRUNCATED and late.reward == 1 and late.metrics["moves"] == 2
    assert len(games) == 1, "the same file is loaded once"
    game.reset(file_of(tmp_path, "other"), 0)
    assert games[0].closed and not games[1].closed
    game.close()
    assert games[1].closed


@pytest.mark.parametrize(
    "told",
    ["save", "look, save", "look. quit", "look then script", "tw-trace-actions", "a\0b", "\ud800", "say hello", "x" * 199],
)  # fmt: skip
def test_what_is_no_command_of_the_game_never_reaches_it(
    tmp_path: Path, games: Any, told: str
) -> None:
    game = built()
    game.reset(file_of(tmp_path), 0)
    answered = game.step(Action(told))
    assert answered.outcome is None and answered.reward == 0 and games[0].said == []
    assert any(
        part in text(answered) for part in ("is not a verb", "Give one command", "at most 198")
    )


def test_a_tool_is_called(tmp_path: Path, games: Any) -> None:
    game = built(actions="tools")
    assert game.reset(file_of(tmp_path), 0).tools[0]["function"]["name"] == "act"
    said = game.step(Action("", (FunctionCall("c", "act", {"command": "take coin"}),)))
    assert said.reward == 0.5 and said.messages[0]["tool_call_id"] == "c"
    assert "Call a tool: act." in text(game.step(Action("take coin")))


@pytest.mark.parametrize(
    ("name", "kind"), [("broken", "game"), ("uncounted", "malformed"), ("silent", "malformed")]
)
def test_a_game_that_is_none_fails_its_episode(
    tmp_path: Path, games: Any, name: str, kind: str
) -> None:
    game = built()
    with pytest.raises(EnvironmentFailed) as caught:
        game.reset(file_of(tmp_path, name), 0)
        game.step(Action("look"))
    assert caught.value.kind == kind
    assert game.reset(file_of(tmp_path), 0).outcome is None


def test_a_game_without_a_highest_score_earns_points(tmp_path: Path, games: Any) -> None:
    game = built()
    game.reset(file_of(tmp_path, "endless"), 0)
    assert game.step(Action("take coin")).reward == 1


def test_a_prompt_without_a_game_is_named(tmp_path: Path, games: Any) -> None:
    (tmp_path / "lone.z8").touch()
    for data, told in (
        ({}, "prompt 'p' is not a game of the environment 'textworld': 'kind' is missing"),
        ({"kind": "tw simple"}, "'tw simple' is not a kind of game"),
        ({"kind": "custom", "settings": {"out": 1}}, "'out' is not a game setting"),
        ({"file": str(tmp_path / "lone.z8")}, "and its .json next to it"),
        ({"file": "/nowhere/house.ulx"}, "a .z8 file"),
    ):
        with pytest.raises(PromptError, match=told):
            built().reset(Prompt("p", data), 0)


MAKER = """
import sys
options = dict(part.partition("=")[::2] for part in sys.argv[1:])
if "--refuse" in options: sys.exit(print("tw-make: error: no such thing", file=sys.stderr) or 2)
if "--crash" in options: raise SystemExit("no quest")
for suffix in (".z8", ".json"):
    open(options["--output"][:-3] + suffix, "w").write(" ".join(sys.argv[1:]))
"""


@pytest.fixture
def maker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache without games, and a tw-make that writes down how it was called."""
    script = tmp_path / "tw-make"
    script.write_text(MAKER)
    listed = [SimpleNamespace(name="tw-make", locate=lambda: script)]
    told = SimpleNamespace(version=lambda name: "1.7.0", files=lambda name: listed)
    monkeypatch.setattr(making, "metadata", told)
    monkeypatch.setenv("ASTRAFLOW_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "textworld"


def test_a_game_is_made_once_for_its_kind_settings_and_seed(maker: Path, games: Any) -> None:
    data = {"kind": "tw-cooking", "settings": {"recipe": 2, "cook": True, "cut": False}, "seed": 7}
    game = built()
    game.reset(Prompt("p", data), 0)
    (file,) = maker.glob("*.z8")
    assert file.with_suffix(".json").exists() and not list(maker.glob("*.part"))
    called = file.read_text().split()
    assert called[:4] == ["tw-cooking", "--seed=7", "--cook", "--recipe=2"]
    assert {"--format=z8", "--silent"} < set(called) and "--cut" not in called
    kept = file.stat().st_mtime_ns
    built().reset(Prompt("q", data), 1)
    assert [each.stat().st_mtime_ns for each in maker.glob("*.z8")] == [kept]


def test_tw_make_says_what_is_wrong(maker: Path) -> None:
    with pytest.raises(PromptError, match=r"TextWorld refuses `tw-make custom --seed=1 --refuse.*no such thing"):  # fmt: skip
        making.made_game("prompt 'p'", "custom", {"refuse": True}, 1)
    with pytest.raises(EnvironmentFailed, match=r"could not make a game with .*no quest"):
        making.made_game("prompt 'p'", "custom", {"crash": True}, 1)
    assert not list(maker.glob("*.z8"))


@pytest.mark.parametrize("name", ["third_party", "third-p", "output", "s eed", "force", "-x", ""])
def test_settings_are_options_of_a_kind_of_games(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a game setting"):
        TextWorldGamesConfig(settings={name: 1})


def test_the_interpreter_has_what_textworld_imports_or_all_of_it() -> None:
    assert recipe(None).finish == "astraflow_contrib_textworld.finish"
    assert recipe("runtime").finish == ""
    with pytest.raises(UserError, match="'runtime-lean' is what TextWorld imports"):
        recipe("runtime-all")


def test_a_build_that_fails_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from astraflow_contrib_textworld import finish

    called: list[str] = []

    def run(command: tuple[str, ...], **_: Any) -> Any:
        called.append(command[-1])
        return SimpleNamespace(returncode=int(command[-1] in failing))

    monkeypatch.setattr(finish.subprocess, "run", run)
    failing = {finish.JERICHO}
    assert "apt-get install gcc make" in str(finish.main())
    failing = {finish.TEXTWORLD}
    assert finish.main() == 1 and called.count(finish.JERICHO) == 1
    failing = set()
    assert finish.main() == 0 and called[-1] == "import textworld"
