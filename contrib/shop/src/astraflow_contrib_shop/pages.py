"""The pages of the shop: what each shows, and what can be clicked on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from astraflow_contrib_shop.catalogue import Catalogue, Product

BACK, NEXT, PREVIOUS, BUY = "back to search", "next >", "< prev", "buy now"
_PARTS = ("description", "features")


class NotThere(ValueError):
    """What was clicked is not on the page; the text is for the model."""


@dataclass(frozen=True, slots=True)
class Page:
    """The search page, a page of results, or one of a product, with the options chosen on it."""

    results: tuple[Product, ...] | None = None
    query: str = ""
    number: int = 0
    product: Product | None = None
    part: str = ""
    chosen: dict[str, str] = field(default_factory=dict)


def clickable(page: Page, size: int) -> list[str]:
    """All that can be clicked."""
    return list(_clickable(page, size))


def _clickable(page: Page, size: int) -> Iterator[str]:
    if page.results is None:
        return
    yield BACK
    if page.product is not None:
        yield PREVIOUS
        if not page.part:
            yield from _PARTS
            for values in page.product.options.values():
                yield from values
            yield BUY
        return
    if (page.number + 1) * size < len(page.results):
        yield NEXT
    if page.number:
        yield PREVIOUS
    yield from (product.name for product in _shown(page, size))


def searched(goods: Catalogue, words: str, most: int) -> Page:
    """The first page of results."""
    return Page(tuple(goods.search(words, most)), words)


def clicked(page: Page, element: str, size: int) -> Page:
    """The page after a click; :class:`NotThere` if it is on none. Buying is not for here."""
    if element not in _clickable(page, size):
        raise NotThere(f"There is no {element[:80]!r} to click here.")
    if element == BACK:
        return Page()
    if page.product is None:
        if element in (NEXT, PREVIOUS):
            return replace(page, number=page.number + (1 if element == NEXT else -1))
        product = next(product for product in _shown(page, size) if product.name == element)
        return replace(page, product=product, chosen={})
    if element == PREVIOUS:
        return replace(page, part="") if page.part else replace(page, product=None, chosen={})
    if element in _PARTS:
        return replace(page, part=element)
    name = next(name for name, values in page.product.options.items() if element in values)
    return replace(page, chosen={**page.chosen, name: element})


def text(page: Page, size: int) -> str:
    """What it shows."""
    if page.results is None:
        return "Search page."
    if page.product is None:
        last = max(1, -(-len(page.results) // size))
        lines = [f"Page {page.number + 1} of {last} ({len(page.results)} results)."]
        lines += [f"[{p.name}] {p.title}, ${p.price:.2f}" for p in _shown(page, size)]
        return "\n".join(lines)
    product = page.product
    if page.part == "features":
        return f"[{product.name}] {product.title}\nFeatures: {', '.join(product.attributes)}"
    if page.part == "description":
        return f"[{product.name}] {product.title}\nA {product.kind} from our department of {product.category}."
    options = [
        f"{name}: {', '.join(values)} (chosen: {page.chosen.get(name, 'none')})"
        for name, values in product.options.items()
    ]
    return "\n".join(
        [f"[{product.name}] {product.title}", f"Price: ${product.price:.2f}", *options]
    )


def _shown(page: Page, size: int) -> tuple[Product, ...]:
    return (page.results or ())[page.number * size : (page.number + 1) * size]
