"""The public names are those of tests/surface.json, and a change of them is told."""

from __future__ import annotations

import ast
from typing import Any

import dev
import pytest
import surface
from pages.public_modules import public_modules
from pages.signatures import breaks_call, is_deprecated, members_of, names_of, signature_of
from workspace import imports, tracked_files


def test_the_public_names_are_the_recorded_ones() -> None:
    record, now = surface.read(), surface.present()
    assert {"astraflow_core.types.Batch", "astraflow_testing.runs.User"} <= now.keys()
    assert len(now) > 800
    found = surface.differences(record["names"], now)
    assert not found, (
        "public names differ from tests/surface.json:\n"
        + "\n".join(map(str, found))
        + "\nIf it is meant, write a fragment in changelog.d/ (for a BREAK of kind changed or removed; once an API is "
        "released, deprecate first, see CONTRIBUTING.md), and record it: " + surface.COMMAND
    )
    assert not surface.untold(record)


def test_plugins_of_the_documents_and_the_templates_use_public_names_only() -> None:
    now, public = surface.present(), public_modules()
    folders = (
        dev.ROOT / "examples",
        dev.ROOT / "contrib/commands/plugin/src/astraflow_contrib_plugin/scaffold",
    )
    wrong, count = [], 0
    for file in tracked_files():
        if file.suffix != ".py" or not any(folder in file.parents for folder in folders):
            continue
        for item in imports(file):
            if item.module in public:
                count += len(item.names)
                names = (f"{item.module}.{name}" for name in item.names)
                wrong += [f"{file}: {n}" for n in names if n not in now and n not in public]
    assert not wrong, "\n".join(wrong)
    assert count > 100


def test_every_distribution_has_types_for_others() -> None:
    examples = sorted((dev.ROOT / "examples/plugins").glob("*/pyproject.toml"))
    folders = [package.path for package in dev.packages()] + [file.parent for file in examples]
    without = [f"{f.relative_to(dev.ROOT)}/src" for f in folders if not [*f.glob("src/*/py.typed")]]
    assert not without, f"no py.typed, so that its annotations count for nobody: {without}"
    assert len(folders) > 90


OLD = "def(a, b=1, *, c, d=2) -> int"


@pytest.mark.parametrize(
    ("new", "breaks"),
    [
        ("def(a, b=1, *, c, d=2) -> str", False),
        ("def(a, b=1, e=0, *, c, d=2, f=3) -> int", False),
        ("def(a, b=1, *, c=0, d=2) -> int", False),
        ("def(a, b=1, **rest) -> int", False),
        ("def(a, b, *, c, d=2) -> int", True),
        ("def(a, x=1, *, c, d=2) -> int", True),
        ("def(a, *, b=1, c, d=2) -> int", True),
        ("def(a, b=1, *, c) -> int", True),
        ("def(a, b=1, *, c, d=2, e) -> int", True),
        ("async def(a, b=1, *, c, d=2) -> int", True),
        ("= 3", True),
    ],
)
def test_what_breaks_a_call(new: str, breaks: bool) -> None:
    assert breaks_call(OLD, new) is breaks
    assert not breaks_call(OLD, OLD)


def entry(source: str, stability: str = "stable", **more: Any) -> dict[str, Any]:
    (node,) = names_of(ast.parse(source)).values()
    members = members_of(node)
    found = {"stability": stability, "signature": signature_of(node), **more}
    return {**found, "members": members} if members else found


BEFORE = {
    "m.f": entry("def f(a: int) -> int: ..."),
    "m.P": entry("class P(Protocol):\n    def go(self) -> None: ..."),
    "m.D": entry("@dataclass\nclass D:\n    x: int\n    y: int = 2"),
    "m.gone": entry("def gone() -> None: ..."),
}
AFTER = {
    "m.f": entry("def f(a: int, b: int = 2) -> int: ..."),
    "m.P": entry(
        "class P(Protocol):\n    def go(self) -> None: ...\n    def more(self) -> None: ..."
    ),
    "m.D": entry(
        "@dataclass\nclass D:\n    x: int\n    y: int = 2\n    z: int = 3\n    def go(self, a: int) -> int: ..."
    ),
    "m.new": entry("new = 3"),
}


def test_differences_say_what_breaks() -> None:
    found = {each.name: each.breaks for each in surface.differences(BEFORE, AFTER)}
    assert found == {
        "m.f": False, "m.P.more": True, "m.D.z": False, "m.D.go": False, "m.gone": True, "m.new": False
    }  # fmt: skip
    demanded = {"m.D": entry("@dataclass\nclass D:\n    x: int\n    w: int\n    y: int = 2")}
    (difference,) = surface.differences({"m.D": BEFORE["m.D"]}, demanded)
    assert difference.breaks


def test_a_break_needs_a_fragment_that_names_it_and_after_a_release_a_deprecation() -> None:
    record: dict[str, Any] = {"released": None, "names": BEFORE}
    found = surface.differences(BEFORE, AFTER)
    text = "`gone` is gone: call `f`. A `P` has `more` to implement."
    assert surface.refusals(found, record, "1.0", "x.removed.md", text) == []
    for kind, words in (("added", text), ("removed", "`gone` is gone")):
        (wrong,) = [
            w for w in surface.refusals(found, record, "1.0", f"x.{kind}.md", words) if "more" in w
        ]
        assert "needs a fragment of kind changed or removed that names `more`" in wrong

    released = {"released": "1.0", "names": BEFORE}
    wrong = surface.refusals(found, released, "1.0", "x.removed.md", text)
    assert sum("needs the next major version" in w for w in wrong) == 2
    assert sum("raise the minor version" in w for w in wrong) == 1
    (wrong_now,) = surface.refusals(found, released, "2.0", "x.removed.md", text)
    assert "m.gone" in wrong_now and "was not deprecated" in wrong_now
    warned = {
        **released,
        "names": {**BEFORE, "m.gone": {**BEFORE["m.gone"], "stability": "deprecated"}},
    }
    assert surface.refusals(found, warned, "2.0", "x.removed.md", text) == []


def test_a_record_keeps_since_and_names_the_fragment_of_a_change() -> None:
    before = {name: {**each, "since": "1.0"} for name, each in BEFORE.items()}
    new = surface.updated({"released": "1.0", "names": before}, AFTER, "1.1", "surface.added.md")
    names = new["names"]
    assert (names["m.f"]["since"], names["m.new"]["since"]) == ("1.0", "1.1")
    assert {n for n, each in names.items() if "fragment" in each} == {"m.f", "m.P", "m.D", "m.new"}
    assert surface.differences(names, AFTER) == []
    assert "changelog.d/surface.added.md is not there" not in str(surface.untold(new))
    names["m.f"]["fragment"] = "nowhere.added.md"
    assert surface.untold(new) == ["m.f: changelog.d/nowhere.added.md is not there"]


def test_a_warning_makes_a_name_deprecated() -> None:
    warns = "def f():\n    warnings.warn('use g', DeprecationWarning, stacklevel=2)"
    (node,) = ast.parse(warns).body
    assert is_deprecated(node)
    made = ast.parse(
        f"class C:\n    {warns.replace('f()', '__init__(self)').replace(chr(10), chr(10) + '    ')}"
    )
    assert is_deprecated(made.body[0])
    assert not is_deprecated(ast.parse("def f(): ...").body[0])


def test_names_of_a_module() -> None:
    tree = ast.parse(
        "import a\nfrom b import c as c, d\ndef e(): ...\ndef _f(): ...\ng: int = 3\nif X:\n    h = 1\n"
    )
    assert list(names_of(tree)) == ["c", "e", "g", "h"]
    tree = ast.parse("from b import d\n__all__ = ['d']\ndef e(): ...\n")
    assert list(names_of(tree)) == ["d"]
