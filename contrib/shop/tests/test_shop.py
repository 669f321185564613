"""A shop in which goals can be reached, and purchases are worth what the formula says."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_shop.catalogue import Product, catalogue
from astraflow_contrib_shop.config import GoalsConfig, ShopConfig
from astraflow_contrib_shop.environment import Shop
from astraflow_contrib_shop.goals import ShopGoals, score
from astraflow_core.errors import PromptError
from astraflow_core.types import Action, FunctionCall, Observation, Outcome, Prompt
from astraflow_testing.conformance.subject import context

WHERE = {"seed": 0, "products": 200}
GOAL = {"kind": "herbal tea", "attributes": ["organic"], "options": {"flavor": "mint"}, "price": 20}
DATA = {"instruction": "Organic mint tea.", "goal": GOAL, "catalogue": WHERE}


def play(
    data: dict[str, Any], acts: Callable[[Observation], Action | str | None], **keys: Any
) -> list[Observation]:
    async def played() -> list[Observation]:
        shop = Shop(ShopConfig(**keys), context("raas", Path()))
        seen = [await shop.reset(Prompt("p", data), 1)]
        while seen[-1].outcome is None and (action := acts(seen[-1])) is not None:
            seen.append(await shop.step(Action(action) if isinstance(action, str) else action))
        return seen

    return asyncio.run(played())


def says(*replies: Action | str) -> Callable[[Observation], Action | str | None]:
    left = iter(replies)
    return lambda _: next(left, None)


def text(seen: Observation) -> str:
    return str(seen.messages[0]["content"])


def buyer(goal: dict[str, Any]) -> Callable[[Observation], str]:
    """Looks at the features of each product that a search finds, as a person would, and buys one that has all."""
    looked: set[str] = set()
    chosen: list[str] = []

    def act(seen: Observation) -> str:
        told = text(seen)
        clickable = told.rpartition("clickable: ")[2].partition("\n")[0].split(", ")
        if "search bar; clickable: nothing" in told and "no search bar" not in told:
            return f"search[{goal['kind']} {' '.join(goal['attributes'])}]"
        if "Features: " in told:
            features = re.search(r"Features: (.*)", told)
            assert features
            fits = set(goal["attributes"]) <= set(features[1].split(", "))
            chosen[:] = ["fits"] if fits else []
            return "click[< prev]"
        if "buy now" in clickable:
            name = re.findall(r"\[(b\d+)\]", told)[-1]
            price = float(re.findall(r"Price: \$([\d.]+)", told)[-1])
            offered = all(value in clickable for value in goal["options"].values())
            if name not in looked:
                looked.add(name)
                return (
                    "click[features]"
                    if offered and price <= goal["price"] and goal["kind"] in told
                    else "click[< prev]"
                )
            if not chosen:
                return "click[< prev]"
            missing = [
                v
                for n, v in goal["options"].items()
                if f"{n}: " in told and f"(chosen: {v})" not in told
            ]
            return f"click[{missing[0]}]" if missing else "Thought: it fits.\nclick[buy now]"
        new = [
            element
            for element in clickable
            if re.fullmatch(r"b\d+", element) and element not in looked
        ]
        return f"click[{new[0] if new else 'next >'}]"

    return act


def test_each_goal_can_be_reached_by_what_the_pages_show(tmp_path: Path) -> None:
    for split in ("train", "held_out"):
        source = ShopGoals(
            GoalsConfig(products=200, size=12, split=split), context("dataflow", tmp_path)
        )
        for number in range(len(source)):
            data = dict(source[number].data)
            seen = play(data, buyer(data["goal"]), turns=200, most_results=200)
            assert (seen[-1].reward, seen[-1].outcome) == (1.0, Outcome.FINISHED), data
            assert seen[-1].metrics["won"] == 1


TEA = Product(
    "b1",
    "Alder organic herbal tea model 10",
    "food",
    "herbal tea",
    ("organic", "loose leaf"),
    {"flavor": ("mint", "rose")},
    12.5,
)


@pytest.mark.parametrize(
    ("product", "chosen", "expected"),
    [
        (TEA, {"flavor": "mint"}, 1),
        (TEA, {"flavor": "rose"}, 2 / 3),
        (TEA, {}, 2 / 3),
        (replace(TEA, price=20.01), {"flavor": "mint"}, 2 / 3),
        (replace(TEA, attributes=("loose leaf",)), {"flavor": "mint"}, 2 / 3),
        (replace(TEA, attributes=(), price=30), {}, 0),
        (replace(TEA, kind="green tea", title="Alder green tea"), {"flavor": "mint"}, 1),
        (replace(TEA, kind="wall mirror", title="Alder wall mirror"), {"flavor": "mint"}, 0),
    ],
)
def test_a_purchase_is_worth_what_webshop_says(
    product: Product, chosen: dict[str, str], expected: float
) -> None:
    assert score(GOAL, product, chosen).reward == pytest.approx(expected)


def test_a_title_that_shares_little_makes_a_purchase_worth_less() -> None:
    words = " ".join("abcdefghijkl")
    goal = {**GOAL, "kind": words}
    shares_one = replace(TEA, kind="other", title="a tea")
    assert score(goal, shares_one, {"flavor": "mint"}).type == 0.1
    assert score(goal, replace(shares_one, title="a b tea"), {"flavor": "mint"}).type == 0.5
    assert score(goal, replace(shares_one, title="a b c tea"), {"flavor": "mint"}).type == 1


def test_pages_lead_to_each_other() -> None:
    product = next(p for p in catalogue(**WHERE).products if p.kind == "running shoe")
    size = product.options["size"][0]
    seen = play(
        DATA,
        says(
            "click[buy now]", f"search[{product.title}]", "search[x]", "Click[NEXT >]", "click[< prev]", f"click[{product.name}]",
            "click[description]", "click[< prev]", f"click[{size}]", "click[< prev]", "click[back to search]", "hm",
        ),
        page=3,
    )  # fmt: skip
    told = [text(one) for one in seen]
    assert (
        "Instruction: Organic mint tea." in told[0] and "search bar; clickable: nothing" in told[0]
    )
    assert told[1].startswith("There is no 'buy now' to click here.") and "14 turns left" in told[1]
    assert told[2].startswith("Page 1 of ") and f"[{product.name}]" in told[2].splitlines()[1]
    assert "next >" in told[2] and "< prev" not in told[2]
    assert told[3].startswith("There is no search bar on this page")
    assert (
        told[4].startswith("Page 2 of ")
        and "< prev" in told[4]
        and told[5].startswith("Page 1 of ")
    )
    assert (
        f"Price: ${product.price:.2f}" in told[6]
        and "(chosen: none)" in told[6]
        and "buy now" in told[6]
    )
    assert "department of clothing" in told[7] and "buy now" not in told[7]
    assert f"(chosen: {size})" in told[9] and "(chosen: none)" in told[8]
    assert told[10].startswith("Page 1 of") and told[11].startswith("Search page.")
    assert told[12].startswith("Write search[words] or click[element].")
    assert seen[4].state != seen[5].state and seen[2].state != seen[5].state  # fewer turns are left


def test_tools_search_and_click() -> None:
    def call(name: str, **arguments: Any) -> Action:
        return Action("", (FunctionCall("c", name, arguments),))

    seen = play(
        DATA,
        says(call("search", words="herbal tea"), call("click", element="fly")),
        actions="tools",
    )
    assert {tool["function"]["name"] for tool in seen[0].tools} == {"search", "click"}
    assert seen[1].messages[0]["role"] == "tool" and text(seen[1]).startswith("Page 1 of")
    assert text(seen[2]).startswith("There is no 'fly' to click here.")


def test_who_buys_nothing_earns_nothing() -> None:
    seen = play(DATA, lambda _: "search[tea]", turns=3)
    assert [one.outcome for one in seen] == [None, None, None, Outcome.TRUNCATED]
    assert seen[-1].metrics == {"bought": 0.0, "score": 0.0}


@pytest.mark.parametrize("words", ['"', "a AND", "title:x", "*", "", "\0", "🦊", "x" * 5000])
def test_no_character_of_a_search_is_an_operator(words: str) -> None:
    assert "results" in text(play(DATA, says(f"search[{words}]"))[-1])


def test_no_seed_mixes_the_splits(tmp_path: Path) -> None:
    def asked(**keys: Any) -> set[str]:
        source = ShopGoals(GoalsConfig(products=50, **keys), context("dataflow", tmp_path))
        return {source[number].data["instruction"] for number in range(len(source))}

    assert not asked(size=300, seed=1) & asked(size=80, seed=2, split="held_out")


@pytest.mark.parametrize(
    "data", [{}, {**DATA, "goal": {}}, {**DATA, "catalogue": {"seed": "x"}}, {**DATA, "goal": 3}]
)
def test_a_prompt_without_a_goal_is_named(data: dict[str, Any]) -> None:
    with pytest.raises(
        PromptError, match=r"prompt 'p' is not a task of the environment 'shop'.*shop_goals"
    ):
        play(data, says())
