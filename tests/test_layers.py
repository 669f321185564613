"""Allowed imports between the distributions of the workspace, and between the parts of one."""

from __future__ import annotations

import ast
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import dev
import pytest
from workspace import (
    HEAVY,
    ROOT,
    components,
    imports,
    nodes_of,
    parts_of,
    plugins,
    sources,
    where,
)

BELOW = {
    "core": set[str](),
    "libs": {"core", "wire"},
    "runtime": {"core", "libs"},
    "testing": {"core", "libs", "runtime"},  # a suite runs a workflow as a RaaS does
    "plugins": {"core", "libs"},
    "contrib": {"core", "libs"},
    "contrib/commands": {"core", "libs", "runtime"},  # a command shows what the services do
}
"""Folder -> what its distributions may import of ours: those of a folder, or one library. The longest that fits counts."""
LIBRARIES_OF_LIBRARIES = {
    "environments": {"engine_host"},
    "torch_training": {"torch_weights", "training"},
    "torch_weights": {"serving"},
}

LOW = {"types", "errors", "capabilities", "seeds", "shared_secret", "suggestions"}
SEAMS = LOW | {"protocols", "component", "hookspecs"}
CHOICE = {"catalog", "config", "nested"}
SERVICES = {"dataflow", "raas", "trainer"}
SHARED = {
    "audit_log", "telemetry", "config", "device_turn", "file_lock", "forking", "hooks", "logprob_gap", "models", "package_skew",
    "rollouts", "threads",
}  # fmt: skip
PARTS: dict[str, dict[str, set[str]]] = {
    "core": {
        **{part: set() for part in LOW},
        "protocols": {"types"},
        "component": {"errors", "protocols"},
        "hookspecs": {"component", "protocols", "types"},
        "installed": SEAMS,
        **dict.fromkeys(CHOICE, SEAMS | CHOICE | {"installed"}),
    },
    "runtime": {
        **{part: set() for part in SHARED},
        "config": {"hooks"},
        "forking": {"config", "models"},
        "device_turn": {"file_lock"},
        "published": set(),
        "manifest": {"launch", "cli", "published"},  # as strings
        **dict.fromkeys(SERVICES, SHARED),
        "launch": SHARED | SERVICES,
        "preflight": SHARED | SERVICES,
        "cli": SHARED | SERVICES | {"launch", "manifest"},
    },
}
"""Part of a distribution -> its other parts that it may import. Services talk over HTTP, never by import."""


def none(wrong: list[str]) -> None:
    """Fail with every place at once."""
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def test_the_core_is_small() -> None:
    lines = sum(len(file.read_text("utf-8").splitlines()) for file in sources(ROOT / "core"))
    assert lines <= 5500, (
        f"the core has {lines} lines; only seams belong there; move the rest to libs/ or runtime/"
    )
    project = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text("utf-8"))["project"]
    assert len(project["dependencies"]) <= 6


def test_distributions_import_only_what_lies_below_them() -> None:
    folders = {f"astraflow_{p.path.name}": p.path.relative_to(ROOT).parts for p in dev.packages()}
    wrong = []
    for package in dev.packages():
        parts = package.path.relative_to(ROOT).parts
        below = BELOW.get("/".join(parts[:2]), BELOW[parts[0]])
        allowed = below | LIBRARIES_OF_LIBRARIES.get(parts[-1], set())
        for file in sources(package.path):
            for item in imports(file):
                there = folders.get(item.module.partition(".")[0])
                if there is None or there == parts or there[0] in ("plugins", "contrib"):
                    continue
                if not {there[0], there[-1]} & allowed:
                    wrong.append(
                        f"{where(file, item.node)}: {'/'.join(parts)} must not import {item.module}"
                    )
    none(wrong)


@pytest.mark.parametrize("distribution", PARTS)
def test_parts_import_only_what_lies_below_them(distribution: str) -> None:
    top = f"astraflow_{distribution}"
    wrong = []
    for file in sources(ROOT / distribution):
        part = file.relative_to(ROOT / distribution / "src" / top).with_suffix("").parts[0]
        if part in ("__init__", "__main__"):
            continue  # the public names, some of them loaded on first use
        allowed = PARTS[distribution].get(part)
        assert allowed is not None, f"{where(file)}: say in PARTS where {part!r} stands"
        for item in imports(file):
            for reached in parts_of(item, top):
                if reached not in {part, "__version__"} | allowed:
                    wrong.append(f"{where(file, item.node)}: {part} must not import {reached}")
    none(wrong)


def test_no_backend_and_no_plugin_is_imported_below_the_plugins() -> None:
    wrong = [
        f"{where(file, item.node)}: {item.module}"
        for folder in ("core", "runtime", "testing")
        for file in sources(ROOT / folder)
        for item in imports(file)
        if item.module.partition(".")[0] in HEAVY
        or item.module.startswith(("astraflow_plugin_", "astraflow_contrib_"))
    ]
    none(wrong)


def test_every_kind_of_plugin_is_in_its_folder() -> None:
    homes = {c.manifest.relative_to(ROOT).parts[0] for c in components()}
    assert homes == {"runtime", "plugins", "contrib"} and plugins()


def test_folders_import_each_other_in_one_direction() -> None:
    """One folder of a package stands below another one. Modules beside folders join these, and are left out."""
    below: dict[str, set[str]] = {}
    for package in dev.packages():
        source = package.path / "src"
        for file in sources(package.path):
            here = file.relative_to(source).with_suffix("").parts
            for item in imports(file):
                for module in (item.module, *(f"{item.module}.{name}" for name in item.names)):
                    there = module.split(".")
                    shared = next(
                        (i for i, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), 0
                    )
                    ours, theirs = here[: shared + 1], there[: shared + 1]
                    if (
                        shared
                        and source.joinpath(*ours).is_dir()
                        and source.joinpath(*theirs).is_dir()
                    ):
                        below.setdefault(".".join(ours), set()).add(".".join(theirs))
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        none([f"a circle: {' -> '.join(error.args[1])}"])


def for_types_only(file: Path) -> set[int]:
    """The nodes under ``if TYPE_CHECKING``, by ``id``: imports there never run."""
    blocks = (
        node
        for node in nodes_of(file)
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )
    return {id(node) for block in blocks for part in block.body for node in ast.walk(part)}


@pytest.mark.parametrize("package", dev.packages(), ids=lambda package: package.name)
def test_modules_import_each_other_in_one_direction(package: dev.Package) -> None:
    """An import within a function defers the loading of a module; it does not make a circle of two modules right."""
    source = package.path / "src"
    modules = {
        ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): file
        for file in sources(package.path)
    }
    below: dict[str, set[str]] = {}
    for name, file in modules.items():
        unused = for_types_only(file)
        for item in imports(file):
            if isinstance(item.node, ast.Constant) or id(item.node) in unused:
                continue
            named = [f"{item.module}.{part}" for part in item.names]
            reached = {each if each in modules else item.module for each in named or [item.module]}
            below.setdefault(name, set()).update(reached & modules.keys() - {name})
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        none([f"a circle: {' -> '.join(error.args[1])}"])
