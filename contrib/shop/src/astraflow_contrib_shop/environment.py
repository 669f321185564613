"""The environment ``shop``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from astraflow_contrib_shop.catalogue import Catalogue, catalogue
from astraflow_contrib_shop.config import ShopConfig
from astraflow_contrib_shop.goals import score
from astraflow_contrib_shop.pages import BUY, NotThere, Page, clickable, clicked, searched, text
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, ComponentContext, Observation, Outcome, Prompt
from astraflow_environments.actions import argument, said, tool

_RULES = """\
You are shopping. In each of your {turns} turns you do one thing. {how} Buy what the instruction asks for; you can buy once. \
Choose the options before you buy.

Instruction: {instruction}
"""
_HOW = {
    "text": "Write search[words] on the search page, or click[element] with an element that can be clicked, such as "
    "click[buy now].",
    "tools": "Call search on the search page, or click with an element that can be clicked, such as 'buy now'.",
}
_TOOLS = (
    tool("search", "Search for products.", words={"type": "string", "description": "Words."}),
    tool(
        "click",
        "Click an element of the page.",
        element={"type": "string", "description": "What to click."},
    ),
)
_ARGUMENTS = {"search": "words", "click": "element"}
_ACTION = re.compile(r"\b(search|click)\s*\[([^\]\n]*)\]", re.IGNORECASE)


class Shop:
    """Pages and clicks on them; what is bought is judged by how far it is what the prompt's goal asks for."""

    def __init__(self, config: ShopConfig, context: ComponentContext) -> None:
        self._config = config
        self._page = Page()
        self._left = 0
        self._goal: Mapping[str, Any] = {}
        self._goods: Catalogue

    async def reset(self, task: Prompt, seed: int) -> Observation:
        """Begin at the search page. :class:`PromptError` for a prompt without a goal."""
        data = task.data
        try:
            self._goal, where = dict(data["goal"]), data["catalogue"]
            instruction = str(data["instruction"])
            missing = {"kind", "attributes", "options", "price"} - self._goal.keys()
            if missing:
                raise KeyError(sorted(missing)[0])
            self._goods = catalogue(int(where["seed"]), int(where["products"]))
        except (KeyError, TypeError, ValueError) as error:
            raise PromptError(
                f"prompt {task.id!r} is not a task of the environment 'shop': {error} is missing or wrong; the prompt source "
                "'shop_goals' makes them"
            ) from error
        self._page, self._left = Page(), self._config.turns
        rules = _RULES.format(
            turns=self._left, how=_HOW[self._config.actions], instruction=instruction
        )
        return self._observation(None, rules + "\n" + self._shown())

    async def step(self, action: Action) -> Observation:
        """Search, click, or buy."""
        self._left -= 1
        try:
            told = self._done(action)
        except ValueError as error:
            told = f"{error}\n{self._shown()}"
        if told is None:
            return self._bought()
        if self._left == 0:
            metrics = {"bought": 0.0, "score": 0.0}
            return Observation((), 0.0, Outcome.TRUNCATED, state=self._state, metrics=metrics)
        return self._observation(action, told)

    async def close(self) -> None:
        """There is nothing to free."""
        self._left = 0

    def _done(self, action: Action) -> str | None:
        """The text that the model sees; None if it has bought. Raises :class:`ValueError` if the action is impossible."""
        kind, words = self._read(action)
        words = words.strip()
        if kind == "search":
            if self._page.results is not None:
                raise NotThere("There is no search bar on this page; click 'back to search' first.")
            self._page = searched(self._goods, words, self._config.most_results)
            return self._shown()
        element = words.lower()
        if element == BUY and BUY in clickable(self._page, self._config.page):
            return None
        self._page = clicked(self._page, element, self._config.page)
        return self._shown()

    def _read(self, action: Action) -> tuple[str, str]:
        if self._config.actions == "tools":
            return argument(action, _ARGUMENTS)
        found = _ACTION.findall(action.text)
        if not found:
            raise ValueError("Write search[words] or click[element].")
        kind, words = found[-1]
        return kind.lower(), words

    def _bought(self) -> Observation:
        assert self._page.product is not None, "only a product can be bought"
        got = score(self._goal, self._page.product, self._page.chosen)
        metrics = {
            "bought": 1.0, "score": got.reward, "won": float(got.reward == 1.0), "right_type": got.type,
            "right_attributes": got.attributes, "right_options": got.options, "right_price": got.price,
        }  # fmt: skip
        return Observation((), got.reward, Outcome.FINISHED, state=self._state, metrics=metrics)

    def _shown(self) -> str:
        elements = clickable(self._page, self._config.page)
        bar = "search bar" if self._page.results is None else "no search bar"
        return f"{text(self._page, self._config.page)}\nAvailable: {bar}; clickable: {', '.join(elements) or 'nothing'}"

    @property
    def _state(self) -> str:
        page = self._page
        names = None if page.results is None else [product.name for product in page.results]
        product = page.product.name if page.product else ""
        return json.dumps([names, page.number, product, page.part, page.chosen, self._left])

    def _observation(self, action: Action | None, told: str) -> Observation:
        tools = _TOOLS if self._config.actions == "tools" else ()
        turns = "" if action is None else f"\n{self._left} turn{'s' * (self._left > 1)} left."
        return Observation(said(action, told + turns), tools=tools, state=self._state)
