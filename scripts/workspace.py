"""The workspace, read from its files: packages, modules, imports, manifests.

For the layout tests and the generated documents. Everything is read, nothing is imported.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dev

ROOT = dev.ROOT
HEAVY = {
    "accelerate", "flax", "jax", "megatron", "mlflow", "numba", "ray", "sglang", "swanlab", "tensorboardX",
    "torch", "trackio", "transformers", "triton", "vllm", "wandb",
}  # fmt: skip
"""Import names of backends: never in the core, in a manifest or in a config module."""


@cache
def tree_of(file: Path) -> ast.Module:
    """The parsed module."""
    with uninterrupted():
        parsed = ast.parse(file.read_text(encoding="utf-8"), str(file))
        gc.freeze()  # it lives until the end: garbage collections in later tests need not visit it
    return parsed


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """All nodes of the parsed module."""
    return tuple(ast.walk(tree_of(file)))


def called(node: ast.Call) -> str:
    """``a.b.c`` as it is written; empty for another expression. ``ast.unparse`` of each call of the tree takes seconds."""
    parts, function = [], node.func
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    return ".".join([function.id, *reversed(parts)]) if isinstance(function, ast.Name) else ""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """No garbage collection meanwhile.

    A collection may log the traceback of an abandoned task, and Python 3.11 parses source to print
    one: its parser is not re-entrant, and the outer ``ast.parse`` ends in a ``SystemError``.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@cache
def metadata_of(package: Path) -> dict[str, Any]:
    """The parsed pyproject.toml of a package."""
    return tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))


@cache
def tracked_files() -> tuple[Path, ...]:
    """What git tracks or would; without git, what lies here outside hidden and built folders."""
    if (ROOT / ".git").exists():
        # A checkout may belong to another user than the one who tests it, as in a container.
        command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
        command += ["--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=30)
        files = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        files = [
            file
            for file in ROOT.rglob("*")
            if not any(
                part.startswith(".") or part in ("build", "dist", "runs")
                for part in file.relative_to(ROOT).parts
            )
        ]
    return tuple(sorted(file for file in files if file.is_file()))


def guides() -> list[Path]:
    """What a user reads: README.md, CONTRIBUTING.md and the pages in docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def sources(package: Path) -> list[Path]:
    """Modules of a package; templates under scaffold/ are text, not modules."""
    return [f for f in sorted((package / "src").rglob("*.py")) if "scaffold" not in f.parts]


def all_sources() -> list[Path]:
    """Modules of all packages."""
    return [file for package in dev.packages() for file in sources(package.path)]


def where(file: Path, node: ast.AST | None = None) -> str:
    """``path:line`` for a report."""
    place = str(file.relative_to(ROOT))
    return f"{place}:{node.lineno}" if node is not None and hasattr(node, "lineno") else place


@dataclass(frozen=True)
class Import:
    """A module that a file imports: by statement, or named in a string such as ``"a.b:c"``."""

    module: str
    names: tuple[str, ...]
    node: ast.AST


@cache
def imports(file: Path) -> tuple[Import, ...]:
    """What a module imports at any depth, for typing and lazily too."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[Import]:
    for node in nodes_of(file):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, (), node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where(file, node)}: import by the full name"
            yield Import(node.module or "", tuple(alias.name for alias in node.names), node)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("astraflow_")
            and re.fullmatch(r"astraflow_\w+(\.\w+)+(:\w+)?", node.value)
        ):
            yield Import(node.value.partition(":")[0], (), node)


def parts_of(item: Import, package: str) -> list[str]:
    """The parts of a package that an import reaches (``from package import x`` included)."""
    parts = item.module.split(".")
    if parts[0] != package:
        return []
    return [parts[1]] if len(parts) > 1 else list(item.names)


def normal(distribution: str) -> str:
    """The normalised name of a distribution (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def required(requirements: list[str]) -> set[str]:
    """Normalised distribution names of a list of requirements."""
    return {normal(re.split(r"[^\w.-]", text.strip(), maxsplit=1)[0]) for text in requirements}


def declared(package: Path) -> set[str]:
    """Every distribution that a package asks for, extras included."""
    project = metadata_of(package)["project"]
    extras = project.get("optional-dependencies", {}).values()
    return required([*project.get("dependencies", ()), *(r for extra in extras for r in extra)])


@dataclass(frozen=True)
class Declared:
    """A component as a manifest declares it."""

    kind: str
    name: str
    config: str | None
    manifest: Path


@cache
def components() -> tuple[Declared, ...]:
    """Every component of the workspace's manifests, read without importing them."""
    found = []
    for package in dev.packages():
        for manifest in manifests(package.path):
            for function in ast.walk(tree_of(manifest)):
                if isinstance(function, ast.FunctionDef) and function.name.startswith("astraflow_"):
                    hook = function.name.removeprefix("astraflow_")
                    kind = "data_policy" if hook == "data_policies" else hook.removesuffix("s")
                    for call in ast.walk(function):
                        if isinstance(call, ast.Call) and ast.unparse(call.func) == "Component":
                            given = {k.arg: ast.literal_eval(k.value) for k in call.keywords
                                     if k.arg in ("name", "config")}  # fmt: skip
                            name = given.get("name") or ast.literal_eval(call.args[0])
                            found.append(Declared(kind, name, given.get("config"), manifest))
    return tuple(found)


def manifests(package: Path) -> list[Path]:
    """The manifest modules that the entry points of a package name."""
    points = metadata_of(package)["project"].get("entry-points", {}).get("astraflow", {})
    return [module_file(package, value) for value in points.values()]


def module_file(package: Path, module: str) -> Path:
    """Where a module of a package lies."""
    path = package.joinpath("src", *module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def plugins() -> list[dev.Package]:
    """Every package of plugins/ and contrib/."""
    return [
        p for p in dev.packages() if p.path.relative_to(ROOT).parts[0] in ("plugins", "contrib")
    ]
