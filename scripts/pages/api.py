"""docs/api.md: the public names, each with its stability and the version of the plugin API since which it exists."""

from __future__ import annotations

from collections.abc import Mapping

import surface

from pages.markdown import GENERATED, code, page, table
from pages.public_modules import owner_of, public_modules
from pages.reference import page_of, places


def api() -> str:
    """The page."""
    recorded, now = surface.read()["names"], surface.present()
    version, described = surface.api_version(), places()
    parts = []
    for module in sorted(public_modules()):
        rows = [
            (
                _linked(name, described),
                _what(entry["signature"]),
                recorded.get(name, {}).get("since", version),
                entry["stability"],
            )
            for name, entry in now.items()
            if name.rpartition(".")[0] == module
        ]
        if rows:
            owner = owner_of(module)
            parts += [f"## {module}", f"Owner: [`{owner}`](api/{page_of(owner)}.md)"]
            parts.append(table(("name", "what it is", "since", "stability"), rows))
    return page(
        "# Public names",
        GENERATED,
        f"""
The names that a plugin, a service of your own and their tests may use: those of the [public modules](modules.md). This is
plugin API {version}. Each links to its description: fields with their types, methods, arguments, and what they mean. `since` is the version of the plugin API that brought a name, the owner is the distribution that has it.

| stability | meaning |
| --- | --- |
| stable | keeps its meaning until the next major version of the plugin API; before that it is deprecated for a minor version at least |
| provisional | may change with a minor version, with a line in the changelog |
| deprecated | still works, warns with `DeprecationWarning`, and goes with the next major version |

Signatures are recorded in `tests/surface.json`, and [a test compares them](../CONTRIBUTING.md#the-public-names). The keys of
components and of a run are no part of this page: [configuration](configuration.md) lists them.
""",
        *parts,
    )


def _what(signature: str) -> str:
    """Such as ``class``, ``function`` or ``value``; of a name that is exported again, where it comes from."""
    if signature.startswith("is "):
        return f"the same as {code(signature.removeprefix('is '))}"
    if "class(" in signature:
        return "protocol" if "Protocol" in signature else "class"
    if "async def(" in signature:
        return "coroutine function"
    return "function" if "def(" in signature else "value"


def _linked(name: str, described: Mapping[str, str]) -> str:
    shown = code(name.rpartition(".")[2])
    return f"[{shown}]({described[name]})" if name in described else shown
