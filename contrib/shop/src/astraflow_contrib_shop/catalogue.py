"""A catalogue of products that follows from a seed, and the search over it."""

from __future__ import annotations

import random
import re
import sqlite3
from dataclasses import dataclass
from functools import lru_cache

_BRANDS = (
    "Alder",
    "Bramble",
    "Corvid",
    "Dunlin",
    "Everfell",
    "Fenwick",
    "Gorse",
    "Harrow",
    "Inkwell",
    "Juniper",
)
_COLOURS = ("black", "blue", "green", "grey", "red", "white", "yellow")
_SIZES = ("small", "medium", "large", "x-large")
_GENERAL = ("durable", "lightweight", "easy to clean", "handmade", "recycled", "gift wrapped")

_KINDS: dict[str, dict[str, tuple[tuple[str, ...], dict[str, tuple[str, ...]], tuple[int, int]]]] = {
    "clothing": {
        "hiking jacket": (("waterproof", "windproof", "hooded", "fleece lined"), {"color": _COLOURS, "size": _SIZES}, (30, 160)),
        "running shoe": (("arch support", "non slip", "breathable", "wide fit"), {"color": _COLOURS, "size": ("6", "7", "8", "9", "10")}, (25, 140)),
        "cotton shirt": (("long sleeve", "short sleeve", "slim fit", "machine wash"), {"color": _COLOURS, "size": _SIZES}, (8, 60)),
        "wool sock": (("anti odour", "cushioned", "ankle high", "knee high"), {"color": _COLOURS}, (4, 25)),
    },
    "home": {
        "table lamp": (("dimmable", "energy saving", "wooden base", "touch control"), {"color": _COLOURS}, (12, 110)),
        "storage box": (("stackable", "foldable", "with lid", "transparent"), {"size": _SIZES}, (6, 45)),
        "wall mirror": (("frameless", "shatterproof", "round", "full length"), {"size": _SIZES}, (15, 190)),
        "kitchen knife": (("stainless steel", "dishwasher safe", "serrated", "ceramic blade"), {"color": _COLOURS}, (9, 95)),
    },
    "electronics": {
        "wireless headphone": (("noise cancelling", "long battery life", "foldable", "with microphone"), {"color": _COLOURS}, (20, 320)),
        "phone charger": (("fast charging", "usb c", "two ports", "travel size"), {"color": _COLOURS, "length": ("1 m", "2 m", "3 m")}, (7, 55)),
        "computer keyboard": (("mechanical", "backlit", "compact", "wireless"), {"layout": ("english", "french", "german")}, (15, 170)),
        "security camera": (("night vision", "motion detection", "weatherproof", "two way audio"), {"pack": ("1", "2", "4")}, (25, 260)),
    },
    "food": {
        "herbal tea": (("caffeine free", "organic", "sugar free", "loose leaf"), {"flavor": ("ginger", "lemon", "mint", "rose"), "pack": ("1", "3", "6")}, (3, 30)),
        "protein bar": (("gluten free", "low sugar", "plant based", "nut free"), {"flavor": ("banana", "cocoa", "peanut", "vanilla")}, (2, 40)),
        "dried fruit": (("no added sugar", "non gmo", "organic", "resealable"), {"flavor": ("apple", "apricot", "fig", "mango")}, (3, 35)),
    },
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Product:
    """What is sold. ``attributes`` are found in its title or among its features, ``options`` are to be chosen."""

    name: str
    title: str
    category: str
    kind: str
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    price: float


class Catalogue:
    """Products and a search over them."""

    def __init__(self, seed: int, products: int) -> None:
        generator = random.Random(f"catalogue {seed} {products}")
        self.products = tuple(_product(generator, number) for number in range(products))
        self.named = {product.name: product for product in self.products}
        # It is no longer written, so all threads may read it.
        self._index = sqlite3.connect(":memory:", check_same_thread=False)
        self._index.execute(
            "CREATE VIRTUAL TABLE goods USING fts5(title, text, tokenize = 'porter unicode61')"
        )
        self._index.executemany(
            "INSERT INTO goods (rowid, title, text) VALUES (?, ?, ?)",
            (
                (
                    number,
                    product.title,
                    f"{product.category} {' '.join(product.attributes)} {_values(product)}",
                )
                for number, product in enumerate(self.products)
            ),
        )

    def search(self, words: str, most: int) -> list[Product]:
        """The products that match best (bm25, titles counted three times); no character of ``words`` is an operator."""
        found = dict.fromkeys(re.findall(r"\w+", words.lower()))
        if not found:
            return []
        escaped = " OR ".join(f'"{word}"' for word in list(found)[:32])
        rows = self._index.execute(
            "SELECT rowid FROM goods WHERE goods MATCH ? ORDER BY bm25(goods, 3.0, 1.0), rowid LIMIT ?",
            (escaped, most),
        )
        return [self.products[number] for (number,) in rows]


@lru_cache(4)
def catalogue(seed: int, products: int) -> Catalogue:
    """The catalogue of a seed; nothing in it changes, so that all episodes share it."""
    return Catalogue(seed, products)


def _product(generator: random.Random, number: int) -> Product:
    category = generator.choice(sorted(_KINDS))
    kind = generator.choice(sorted(_KINDS[category]))
    own, options, (least, most) = _KINDS[category][kind]
    attributes = (*generator.sample(own, generator.randint(1, 3)), generator.choice(_GENERAL))
    offered: dict[str, tuple[str, ...]] = {}
    for name, values in options.items():
        kept = generator.sample(values, max(2, len(values) - 2))
        offered[name] = tuple(value for value in values if value in kept)
    titled = attributes[: generator.randint(0, 2)]
    title = " ".join(
        (generator.choice(_BRANDS), *titled, kind, f"model {generator.randint(10, 99)}")
    )
    price = generator.randint(least * 100, most * 100) / 100
    return Product(f"b{number:05}", title, category, kind, attributes, offered, price)


def _values(product: Product) -> str:
    return " ".join(value for values in product.options.values() for value in values)
