"""Which modules are public is written once, and the plugins of this repository need no others."""

from __future__ import annotations

import ast

import dev
from pages.public_modules import public_modules, reached
from workspace import ROOT, Import, imports, plugins, sources, tracked_files, where


def imported() -> list[tuple[str, str]]:
    """Each module of the core and its libraries that a plugin or an example imports, and where; commands of this repository
    are of the release of the runtime, and import what it has."""
    ours = {p.name.replace("-", "_") for p in dev.packages()} - {
        p.name.replace("-", "_") for p in plugins()
    }
    files = [
        file
        for package in plugins()
        if ROOT / "contrib" / "commands" not in package.path.parents
        for file in sources(package.path)
    ]
    files += [f for f in tracked_files() if f.suffix == ".py" and ROOT / "examples" in f.parents]
    return [
        (module, where(file, item.node))
        for file in files
        for item in imports(file)
        for module in reached(item)
        if module.partition(".")[0] in ours
    ]


def test_plugins_and_examples_import_listed_modules_only() -> None:
    found, public = imported(), public_modules()
    assert {"astraflow_core.types", "astraflow_testing.conformance.engine"} <= public
    assert len(found) > 100
    wrong = [f"{place}: {module}" for module, place in found if module not in public]
    assert not wrong, (
        "private modules are imported; list them in scripts/pages/public_modules.py if any plugin may "
        "do so:\n" + "\n".join(wrong)
    )


def test_a_module_is_public_only_if_it_is_listed() -> None:
    public, node = public_modules(), ast.Pass()
    for module, names in (
        ("astraflow_runtime", ("raas",)),
        ("astraflow_wire", ("columns",)),
        ("astraflow_testing.conformance", ("_link",)),
        ("astraflow_weights.fetch.pool", ("Pool",)),
    ):
        assert not set(reached(Import(module, names, node))) & public
    listed = reached(Import("astraflow_wire", ("messages", "frames"), node))
    assert len(listed) == 2 and set(listed) <= public
