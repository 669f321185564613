"""The rules of the workspace, checked in its files: imports, names, sizes, code style.

Nothing here imports a package of the workspace; a violation is reported with its place.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from importlib.metadata import packages_distributions
from pathlib import Path

import dev
import pytest
from workspace import (
    HEAVY,
    ROOT,
    all_sources,
    called,
    components,
    declared,
    imports,
    manifests,
    metadata_of,
    module_file,
    nodes_of,
    normal,
    plugins,
    required,
    sources,
    tracked_files,
    tree_of,
    where,
)

from astraflow_core.component import Kind

CORE = ROOT / "core" / "src" / "astraflow_core"

HEAVY_DISTRIBUTIONS = HEAVY | {"megatron-core"}
IN_SERVER = "in_server"
"""A folder of what runs in the interpreter of somebody else's server, which has nothing of ours: its package tests what it imports."""
OF_THE_API = {"numpy", "pydantic"}
"""Types and configs of the core are made of these, so whoever depends on the core has them."""
KIND_OF_FOLDER = {
    "engines": "engine",
    "trainers": "trainer",
    "algorithms": "algorithm",
    "data_policies": "data_policy",
    "transports": "transport",
}
KINDS = {
    *KIND_OF_FOLDER.values(),
    "workflow",
    "environment",
    "reward",
    "prompt_source",
    "launcher",
    "tracker",
}
PICKLING = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
CONFINED = "libs/sandbox/src/astraflow_sandbox/guest/program.py"
"""Becomes the program of a policy, when the kernel has confined its process."""
PICKLE_HOMES = {
    "runtime/src/astraflow_runtime/launch/planning/user_objects.py",  # writes
    "runtime/src/astraflow_runtime/raas/user_objects.py",  # reads
    "contrib/commands/compat/src/astraflow_contrib_compat/pickles/guest.py",  # in a sandbox, by names on a list
}
"""A user's own workflow and reward, handed by the launcher to its own children in a file: nothing else."""
UNSAFE_UNLESS = {"allow_pickle", "shell", "weights_only"}
"""Arguments of calls that decode data or start programs."""
DEFAULTS = {"local", "three_zones", "merged"}
"""Components that a configuration names by default, or that it has to know."""
LONGEST_MODULE = 450
MOST_MODULES = 15
LONGEST_FUNCTION = 75
"""Lines of its own, without those of functions within it."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DECLARATIONS = {"add_arguments", "astraflow_algorithms", "_add_routes"}
"""Functions that only list what there is: options, components, routes."""


def none(wrong: list[str]) -> None:
    """Fail with every place at once."""
    if wrong:
        pytest.fail("\n".join(wrong), pytrace=False)


def test_core_names_no_component_of_a_plugin() -> None:
    names = {c.name for c in components() if ROOT / "core" not in c.manifest.parents}
    assert names or not plugins(), "no manifest declares a component"
    wrong = []
    for file in sources(ROOT / "core"):
        part = file.relative_to(CORE).with_suffix("").parts[0]
        if part == "capabilities":  # the closed sets of flags
            continue
        for node in nodes_of(file):
            literal = node.value if isinstance(node, ast.Constant) else None
            if literal in names - DEFAULTS - set(Kind):  # a component may be called as its kind is
                wrong.append(f"{where(file, node)}: {literal!r}")
    data = [f for f in tracked_files() if f.is_relative_to(CORE) and f.suffix != ".py"]
    wrong += [
        f"{where(f)}: a list belongs to those who use it" for f in data if f.name != "py.typed"
    ]
    none(wrong)


def test_plugins_import_public_names_and_no_other_plugin() -> None:
    wrong = []
    for package in plugins():
        own = normal(package.name).replace("-", "_")
        for file in sources(package.path):
            for item in imports(file):
                top = item.module.partition(".")[0]
                if top.startswith(("astraflow_plugin_", "astraflow_contrib_")) and top != own:
                    wrong.append(f"{where(file, item.node)}: another plugin, {top}")
                if not top.startswith("astraflow_") or top == own:
                    continue
                words = [*item.module.split("."), *item.names]
                if any(w.startswith("_") and not w.startswith("__") for w in words):
                    wrong.append(f"{where(file, item.node)}: private name of {item.module}")
    none(wrong)


def test_tests_of_a_plugin_use_no_other_plugin() -> None:
    wrong = []
    for package in plugins():
        own = normal(package.name).replace("-", "_")
        for file in sorted((package.path / "tests").rglob("*.py")):
            named = re.findall(r"\bastraflow_(?:plugin|contrib)_\w+", file.read_text("utf-8"))
            for item in imports(file) if set(named) - {own} else ():
                top = item.module.partition(".")[0]
                if top.startswith(("astraflow_plugin_", "astraflow_contrib_")) and top != own:
                    wrong.append(f"{where(file, item.node)}: {top}")
    none(wrong)


def test_every_import_is_declared() -> None:
    provided = {
        "mlflow": ["mlflow-skinny"],
        **packages_distributions(),
    }  # it has its own environment
    wrong = []
    for package in dev.packages():
        own = normal(package.name).replace("-", "_")
        allowed = declared(package.path) | OF_THE_API
        for file in sources(package.path):
            if IN_SERVER in file.parts:
                continue
            for item in imports(file):
                top = item.module.partition(".")[0]
                if top == own or top in sys.stdlib_module_names or top in ("", "__future__"):
                    continue
                if not {normal(d) for d in provided.get(top, [top])} & allowed:
                    wrong.append(
                        f"{where(file, item.node)}: {top} is not in {package.name}'s pyproject"
                    )
    none(wrong)


# --- manifests ---------------------------------------------------------------------------------


def test_manifests_import_only_the_core() -> None:
    wrong = []
    for package in plugins():
        for manifest in manifests(package.path):
            tops = {i.module.partition(".")[0]: i for i in imports(manifest)
                    if not isinstance(i.node, ast.Constant)}  # fmt: skip
            for top in set(tops) - {"__future__", "astraflow_core"}:
                wrong.append(f"{where(manifest, tops[top].node)}: {top}")
    none(wrong)


def test_configs_load_without_the_runtime_extra() -> None:
    """A run is validated on machines that have no backend: what is imported with a config is light."""
    wrong = []
    homes = {manifest: p.path for p in dev.packages() for manifest in manifests(p.path)}
    for component in components():
        package = homes[component.manifest]
        if component.config is None:
            continue
        own = manifests(package)[0].relative_to(package / "src").parts[0]
        module = component.config.partition(":")[0]
        file = module_file(package, module)
        assert file.is_file(), f"{where(component.manifest)}: no module {module}"
        for light in (file, module_file(package, own)):
            for item in imports(light):
                if item.module.partition(".")[0] in HEAVY:
                    wrong.append(f"{where(light, item.node)}: {item.module}")
    none(wrong)


def test_component_names_are_unique_per_kind_and_stand_in_the_folder_of_their_kind() -> None:
    seen: dict[tuple[str, str], Path] = {}
    for component in components():
        key = (component.kind, component.name)
        assert component.kind in KINDS, f"{where(component.manifest)}: kind {component.kind!r}"
        assert key not in seen, f"{key} in {where(component.manifest)} and {where(seen[key])}"
        assert re.fullmatch(r"[a-z][a-z0-9_]*", component.name), (
            f"{key}: lower_case_with_underscores"
        )
        seen[key] = component.manifest
        parts = component.manifest.relative_to(ROOT).parts
        if parts[0] == "plugins":
            assert KIND_OF_FOLDER[parts[1]] == component.kind, where(component.manifest)


# --- packages ----------------------------------------------------------------------------------


@pytest.mark.parametrize("package", dev.packages(), ids=lambda p: p.name)
def test_package_is_laid_out_and_named_by_the_rule(package: dev.Package) -> None:
    parts = package.path.relative_to(ROOT).parts
    data = metadata_of(package.path)
    project = data["project"]
    name = project["name"]
    imported = name.replace("-", "_")

    assert data["build-system"]["build-backend"] == "flit_core.buildapi"
    assert data["tool"]["flit"]["module"]["name"] == imported
    assert project["requires-python"] == ">=3.11"
    assert (package.path / "README.md").is_file(), "a README.md says when to use it"
    assert list((package.path / "tests").rglob("test_*.py")), "tests/ has no test"
    found = [p.name for p in (package.path / "src").iterdir() if not p.name.endswith("-info")]
    assert [n for n in found if n != "__pycache__"] == [imported]

    heavy = required(project.get("dependencies", [])) & HEAVY_DISTRIBUTIONS
    assert not heavy, f"{sorted(heavy)} belong in the extra [runtime]"
    if parts == ("core",):
        assert name == "astraflow-core"
        return
    assert "astraflow-core>=0.1,<0.2" in [d.replace(" ", "") for d in project["dependencies"]]
    if parts in (("runtime",), ("testing",)):
        assert name == f"astraflow-{parts[0]}"
        return
    if parts[0] == "libs":
        assert name == f"astraflow-{parts[1].replace('_', '-')}"
        assert "entry-points" not in project, "a library provides no component"
        return
    prefix = "plugin" if parts[0] == "plugins" else "contrib"
    short = name.removeprefix(f"astraflow-{prefix}-")
    folder = parts[-1].replace("_", "-")
    names = {folder}
    if parts[0] == "plugins":
        names.add(f"{folder}-{KIND_OF_FOLDER[parts[1]].replace('_', '-')}")
    assert short in names, f"{name} should be astraflow-{prefix}-{' or -'.join(sorted(names))}"
    points = project["entry-points"]
    assert set(points) == {"astraflow"}, "one entry-point group"
    assert [normal(n) for n in points["astraflow"]] == [short], (
        "one entry point, named as the package"
    )
    (manifest,) = manifests(package.path)
    assert manifest.is_file(), f"entry point names {manifest.relative_to(ROOT)}"


def test_third_party_requirements_are_held_by_constraints() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {normal(line.partition("==")[0]) for line in lines if "==" in line}
    asked = required(list(dev.TEST_TOOLS))
    for package in dev.packages():
        project = metadata_of(package.path)["project"]
        asked |= declared(package.path)
        if package.own_environment:  # its backend is never here: it pins its versions itself
            extras = project.get("optional-dependencies", {})
            heavy = [r for name, rs in extras.items() if name.startswith("runtime") for r in rs]
            none([f"{package.name}: {r!r} is no '=='" for r in heavy if "==" not in r])
            asked -= required(heavy) - required(project.get("dependencies", []))
    missing = {r for r in asked - pinned if not r.startswith("astraflow-")}
    assert missing == set(), "add the versions that you tested to constraints.txt"


def test_folders_of_tests_are_no_packages() -> None:
    """Two packages may both have tests/test_x.py, as long as neither folder is a package."""
    wrong = [f for f in tracked_files() if f.name == "__init__.py" and "tests" in f.parts]
    none([where(f) for f in wrong])


def test_no_test_imports_a_conftest() -> None:
    """There are many modules of that name: which one is imported would depend on the tests before."""
    tests = [
        f
        for f in tracked_files()
        if f.suffix == ".py" and "tests" in f.parts and "conftest" in f.read_text("utf-8")
    ]
    none([where(f, i.node) for f in tests for i in imports(f) if i.module == "conftest"])


def lines_of(function: ast.AST) -> int:
    inner = [n for n in ast.walk(function) if isinstance(n, FUNCTIONS) and n is not function]
    outermost = [
        n for n in inner if not any(n in ast.walk(other) for other in inner if other is not n)
    ]
    return length(function) - sum(map(length, outermost))


def length(node: ast.AST) -> int:
    return int(node.end_lineno - node.lineno + 1)  # type: ignore[attr-defined]


def test_functions_are_short() -> None:
    wrong = []
    for file in all_sources():
        text = file.read_text(encoding="utf-8")
        if text.count("\n") <= LONGEST_FUNCTION:
            continue
        for node in nodes_of(file):
            if not isinstance(node, FUNCTIONS) or node.name in DECLARATIONS:
                continue
            if length(node) > LONGEST_FUNCTION and (lines := lines_of(node)) > LONGEST_FUNCTION:
                place = f"{where(file)}:{node.lineno}"
                wrong.append(f"{place}: {node.name} has {lines} lines; which step has a name?")
    none(wrong)


def test_modules_are_short() -> None:
    wrong = []
    for file in tracked_files():
        if file.suffix == ".py":
            lines = len(file.read_text(encoding="utf-8").splitlines())
            if lines > LONGEST_MODULE:
                wrong.append(f"{where(file)}: {lines} lines; which concept is missing?")
    none(wrong)


def test_folders_have_few_modules() -> None:
    """The name of a folder should describe its modules; ``__init__`` and ``__main__`` are not counted."""
    files = [f for f in all_sources() if f.name not in ("__init__.py", "__main__.py")]
    sizes = Counter(where(file.parent) for file in files)
    none([
        f"{folder}: {size} modules; which of them are a folder of their own?"
        for folder, size in sizes.items()
        if size > MOST_MODULES
    ])  # fmt: skip


# --- code style --------------------------------------------------------------------------------


def test_public_names_of_the_core_have_docstrings() -> None:
    wrong = []
    for file in sources(ROOT / "core"):
        tree = tree_of(file)
        if ast.get_docstring(tree) is None:
            wrong.append(where(file))
        for node in tree.body:
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            if named and node.name[0] != "_" and ast.get_docstring(node) is None:
                wrong.append(f"{where(file, node)}: {node.name}")
    none(wrong)


def test_libraries_do_not_print() -> None:
    wrong = [
        where(file, node)
        for file in all_sources()
        if "cli" not in file.parts and "commands" not in file.relative_to(ROOT).parts[:2]
        for node in nodes_of(file)
        if isinstance(node, ast.Call) and called(node) == "print"
    ]
    none(wrong)


def test_nothing_decodes_code_from_data() -> None:
    """No pickle but of a user's own objects, no eval, no shell."""
    wrong = []
    for file in all_sources():
        for item in imports(file):
            if item.module.partition(".")[0] in PICKLING and where(file) not in PICKLE_HOMES:
                wrong.append(f"{where(file, item.node)}: {item.module}")
        for node in nodes_of(file):
            if not isinstance(node, ast.Call):
                continue
            name = called(node)
            given = {k.arg: ast.unparse(k.value) for k in node.keywords if k.arg in UNSAFE_UNLESS}
            if name in ("exec", "eval") and where(file) == CONFINED:
                continue
            if (
                name in ("eval", "exec", "os.system", "os.popen")
                or given.get("shell", "False") != "False"
                or given.get("allow_pickle", "False") != "False"
                or (name == "torch.load" and given.get("weights_only") != "True")
            ):
                wrong.append(f"{where(file, node)}: {name}")
    none(wrong)


def test_files_name_no_machine_and_no_registry() -> None:
    # The brackets keep these patterns from finding themselves.
    pattern = re.compile(
        rb"/[w]ork/(main|shared|steering)|/[o]pt/(pypi|wheels)|/[r]oot/|/[h]ome/\w+/"
        rb"|[p]ypi\.org|[p]ythonhosted\.org|[d]ownload\.pytorch\.org|--(extra-)?[i]ndex-url"
    )
    wrong = []
    for file in tracked_files():
        content = file.read_bytes()
        if b"\0" not in content[:4096]:
            for match in pattern.finditer(content):
                line = content.count(b"\n", 0, match.start()) + 1
                wrong.append(f"{where(file)}:{line}: {match.group().decode()}")
    none(wrong)


def test_changelog_fragments_are_named_by_kind() -> None:
    name = re.compile(r"[a-z0-9-]+\.(added|changed|deprecated|removed|fixed)\.md")
    fragments = [f for f in (ROOT / "changelog.d").iterdir() if f.name != "README.md"]
    none([where(f) for f in fragments if not name.fullmatch(f.name) or not f.read_text().strip()])


def test_core_is_typed_for_those_who_build_on_it() -> None:
    assert (CORE / "py.typed").is_file()


def test_algorithms_keep_golden_values() -> None:
    wrong = [
        f"{package.path.relative_to(ROOT)}: tests/golden.json, computed by something independent, and the "
        "fixture `golden` that gives it to the conformance suite"
        for package in dev.packages()
        if package.path.parent.name == "algorithms"
        and not (
            (package.path / "tests" / "golden.json").exists()
            and "def golden(self)" in (package.path / "tests" / "test_conformance.py").read_text()
        )
    ]
    none(wrong)


def test_every_component_inherits_the_suite_of_its_kind() -> None:
    wrong = []
    for package in dev.packages():
        kind = KIND_OF_FOLDER.get(package.path.parent.name)
        provides = any(package.path in component.manifest.parents for component in components())
        if (
            kind is None or not provides
        ):  # one that only answers a hook has nothing to hold to a suite
            continue
        suite = "".join(part.capitalize() for part in kind.split("_")) + "Conformance"
        inherited = {
            ast.unparse(base).rpartition(".")[2]
            for file in (package.path / "tests").glob("test_*.py")
            for node in tree_of(file).body
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test")
            for base in node.bases
        }
        if suite not in inherited:
            wrong.append(f"{package.path.relative_to(ROOT)}: no test class inherits {suite}")
    none(wrong)
