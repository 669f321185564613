"""The environment ``textworld``."""

from __future__ import annotations

from pathlib import Path

from astraflow_contrib_textworld.config import TextWorldConfig
from astraflow_contrib_textworld.game import PlayedGame
from astraflow_contrib_textworld.making import SUFFIX, checked_kind, checked_settings, made_game
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.actions import argument, said, tool
from astraflow_environments.tasks import seed_of

WHO = "the environment 'textworld'"
_HOW = {
    "text": "You play a text adventure. Reply with one command in each turn; you have {turns} turns.",
    "tools": "You play a text adventure. Call the tool act with one command in each turn; you have {turns} turns.",
}
_ACT = tool(
    "act", "Do one thing.", command={"type": "string", "description": "Such as 'go north'."}
)


class TextWorldEnvironment:
    """A game of TextWorld (https://github.com/microsoft/TextWorld): what a command scores is what the turn earned; won and
    lost games are finished."""

    def __init__(self, config: TextWorldConfig, context: ComponentContext) -> None:
        self._config = config
        self._taken = 0
        self._game: PlayedGame | None = None

    def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin the game of a prompt, which is made first if it has a kind and no file. :class:`PromptError` if it has
        neither."""
        file = _file(task, seed)
        if self._game is None or self._game.file != file:
            self.close()
            self._game = PlayedGame(file)
        told = self._game.begin(seed)
        self._taken = 0
        how = _HOW[self._config.actions].format(turns=self._config.turns)
        return self._observation(self._game, None, f"{how}\n\n{told}")

    def step(self, action: Action) -> Observation:
        """Carry out a command; what the game does not understand costs a turn too."""
        game = self._game
        assert game is not None, "reset comes first"
        self._taken += 1
        before = game.score
        try:
            told = game.do(self._command(action))
        except ValueError as error:
            told = str(error)
        reward = float(game.score - before)
        if self._config.rewards == "share":
            reward /= game.most
        if not game.over and self._taken < self._config.turns:
            return self._observation(game, action, told, reward)
        outcome = Outcome.FINISHED if game.over else Outcome.TRUNCATED
        metrics = {
            "won": float(game.won),
            "lost": float(game.lost),
            "moves": float(self._taken),
            "score": game.score / game.most,
        }
        return Observation(said(action, told), reward, outcome, metrics=metrics)

    def close(self) -> None:
        """End the game."""
        if self._game is not None:
            self._game.close()
            self._game = None

    def _command(self, action: Action) -> str:
        if self._config.actions == "tools":
            return argument(action, {"act": "command"})[1]
        lines = action.text.strip().splitlines()
        return lines[-1].removeprefix(">") if lines else ""

    def _observation(
        self, game: PlayedGame, action: Action | None, text: str, reward: float = 0.0
    ) -> Observation:
        if self._config.show_actions:
            text += f"\nPossible: {', '.join(game.possible)}"
        tools = (_ACT,) if self._config.actions == "tools" else ()
        return Observation(said(action, text), reward, tools=tools)


def _file(task: Prompt, seed: int) -> Path:
    """The game of a prompt."""
    if (file := task.data.get("file")) is not None:
        path = Path(str(file))
        if path.suffix != SUFFIX or not path.is_file() or not path.with_suffix(".json").is_file():
            raise PromptError(
                f"prompt {task.id!r}: 'file' is {str(file)!r:.200}; {WHO} needs a game, a .z8 file, and its .json next to it, at "
                "the same path on each host that plays"
            )
        return path
    try:
        kind, settings = (
            checked_kind(task.data["kind"]),
            checked_settings(task.data.get("settings", {})),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PromptError(
            f"prompt {task.id!r} is not a game of {WHO}: {error} is missing or wrong; the prompt sources 'textworld_games' and "
            "'textworld_folder' have them"
        ) from error
    return made_game(f"prompt {task.id!r}", kind, settings, seed_of(WHO, task, seed))
