"""What is to be bought, and what a purchase is worth."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from astraflow_contrib_shop.catalogue import Catalogue, Product, catalogue
from astraflow_contrib_shop.config import GoalsConfig
from astraflow_core.types import ComponentContext
from astraflow_environments.tasks import PromptList, Task, drawn

_BRACKETS = (10, 20, 30, 40, 50, 60, 80, 100, 130, 160, 200, 250, 300, 400)


@dataclass(frozen=True, slots=True)
class PurchaseScore:
    """The parts of a reward, each in [0, 1], and the reward itself."""

    type: float
    attributes: float
    options: float
    price: float
    reward: float


class ShopGoals(PromptList):
    """Goals in a catalogue, each of which some product fulfils. ``data`` has ``instruction``, ``goal`` and ``catalogue``."""

    def __init__(self, config: GoalsConfig, context: ComponentContext) -> None:
        goods = catalogue(config.catalogue, config.products)
        where = {"seed": config.catalogue, "products": config.products}

        def draw(generator: random.Random) -> Task:
            goal = _goal(generator, goods)
            text = _instruction(goal)
            data = {"instruction": text, "goal": goal, "catalogue": where}
            return text, lambda: data

        super().__init__(drawn("shop_goals", config, draw))


def score(goal: Mapping[str, Any], bought: Product, chosen: Mapping[str, str]) -> PurchaseScore:
    """What a purchase is worth, as WebShop has it (Yao et al., 2022, https://arxiv.org/abs/2207.01206, section 3)::

        r = r_type * (|U_att ∩ Y_att| + |U_opt ∩ Y_opt| + [y_price <= u_price]) / (|U_att| + |U_opt| + 1)

    ``r_type`` follows its code (``get_type_reward``): 1 if kind or category agree or the titles share more than a fifth of
    the goal's words, else 0.5; 0.1 where they share less than a tenth of them, 0 where none. The original takes the nouns of
    titles for that; here it is the words of the kind, which are all the nouns that our titles have."""
    wanted = set(str(goal["kind"]).split())
    shared = len(wanted & set(bought.title.lower().split())) / len(wanted)
    same = bought.kind == goal["kind"] or shared > 0.2
    kind = 1.0 if same else 0.5
    kind = 0.0 if shared == 0 else 0.1 if shared < 0.1 else kind
    attributes, options = list(goal["attributes"]), dict(goal["options"])
    had = sum(attribute in bought.attributes for attribute in attributes)
    right = sum(chosen.get(name) == value for name, value in options.items())
    paid = float(bought.price <= float(goal["price"]))
    reward = kind * (had + right + paid) / (len(attributes) + len(options) + 1)
    return PurchaseScore(
        kind,
        had / len(attributes) if attributes else 1.0,
        right / len(options) if options else 1.0,
        paid,
        reward,
    )


def _goal(generator: random.Random, goods: Catalogue) -> dict[str, Any]:
    product = generator.choice(goods.products)
    attributes = generator.sample(
        product.attributes, generator.randint(1, min(3, len(product.attributes)))
    )
    options = {
        name: generator.choice(values)
        for name, values in product.options.items()
        if generator.random() < 0.8
    }
    price = next(
        (bound for bound in _BRACKETS if bound >= product.price), round(product.price) + 10
    )
    return {"kind": product.kind, "attributes": attributes, "options": options, "price": price}


def _instruction(goal: Mapping[str, Any]) -> str:
    options = "".join(f", with {name} {value}" for name, value in goal["options"].items())
    return (
        f"I am looking for a {goal['kind']} that is {' and '.join(goal['attributes'])}{options}, and a price lower than "
        f"{goal['price']:.2f} dollars."
    )
