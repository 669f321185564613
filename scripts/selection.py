"""Which test files are pure (`make fast`), and which tests a change affects (`make test ARGS=--changed`)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import dev
import durations
import tiers
from workspace import HEAVY, ROOT, declared, normal, sources, tracked_files

PROCESSES = {"multiprocessing", "subprocess"}
SLOW_TO_IMPORT = {"mcp", "pyarrow", "textarena"}
"""Packages that take half a second or more to import, in each worker: their tests run with `make test`."""
EVERYTHING = {"conftest.py", "constraints.txt", "pyproject.toml"}
EVERYWHERE = ("core/tests", "libs", "runtime/tests", "testing/tests", "plugins", "contrib", "tests")
PAGES = tuple(
    f"tests/test_{name}.py" for name in ("docs", "endpoints", "layout", "manifests", "views")
)
"""What reads the documents and all packages as text."""


# --- the pure tier -----------------------------------------------------------------------------


def pure_files() -> list[str]:
    """Test files that import neither a backend, nor a package that is slow to import, nor what
    starts processes, and are not recorded as slow.

    What they import of ours counts too, with the conftest.py that hold for them.
    """
    slow = durations.read()[durations.FILES]
    files = {str(file.relative_to(ROOT)): file for file in _test_files()}
    return [name for name, file in files.items() if name not in slow and not impurities(file)]


def property_files() -> list[str]:
    """Test files that let Hypothesis draw their examples."""
    return [
        str(file.relative_to(ROOT))
        for file in _test_files()
        if any(name.partition(".")[0] == "hypothesis" for name in _imported(file))
    ]


def marked_files(marker: str, arguments: Iterable[str] = ()) -> list[str]:
    """Test files that have tests with this marker, those of the whole system first, as they take longest; none if
    ``arguments`` of pytest name others. Each worker would read all files otherwise, which takes longer than many a test."""
    if any(arg and (ROOT / arg.partition("::")[0]).exists() for arg in arguments):
        return []
    signs = [f"mark.{marker}", *(tiers.SLOW_DEMANDS if marker == "slow" else ())]
    names = [
        name
        for file in _test_files()
        # Those of plugins that are not installed here run elsewhere.
        if (name := str(file.relative_to(ROOT))).startswith(EVERYWHERE)
        if "src" not in file.parts
        and any(sign in file.read_text(encoding="utf-8") for sign in signs)
    ]
    return sorted(
        names,
        key=lambda name: (not name.startswith("tests/"), not name.startswith("plugins/"), name),
    )


def _test_files() -> list[Path]:
    return [f for f in tracked_files() if f.name.startswith("test_") and f.suffix == ".py"]


def impurities(file: Path) -> set[str]:
    """The backends, packages that are slow to import, and means to start processes that a test file reaches."""
    # That of the root holds for all tests, and starts what only those get that ask for it.
    holding = [folder / "conftest.py" for folder in file.parents if ROOT in folder.parents]
    ahead = [file, *(conftest for conftest in holding if conftest.exists())]
    seen, found = set(ahead), set()
    while ahead:
        names, files = _reached(ahead.pop())
        found |= names
        ahead += files - seen
        seen |= files
    return found


@cache
def _reached(file: Path) -> tuple[set[str], set[Path]]:
    """Of what a file imports the names that are not pure, and the files that are ours."""
    names = _imported(file)
    test = _of_tests(file)
    # What the product starts is the product's business; a test that needs a process asks for it itself.
    unwanted = HEAVY | SLOW_TO_IMPORT | (PROCESSES if test else set())
    found = {name for name in names if name.partition(".")[0] in unwanted}
    files = {_modules().get(name) or (test and _beside(file, name)) for name in names}
    return found, {each for each in files if each}


def _of_tests(file: Path) -> bool:
    parts = file.relative_to(ROOT).parts
    return "src" not in parts or "testing" in parts


@cache
def _imported(file: Path) -> frozenset[str]:
    """The modules that a file of tests imports anywhere, another one when it is imported itself."""
    anywhere = _of_tests(file)
    lines = [line.strip() if anywhere else line for line in _text(file).splitlines()]
    found = set(re.findall(r"importorskip\(\"(\w+)", _text(file))) if anywhere else set()
    for line in lines:
        if line.startswith("import "):
            found.add(line.split()[1].rstrip(","))
        elif line.startswith("from ") and " import " in line:
            module, _, names = line[5:].partition(" import ")
            found |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", names))}
    return frozenset(found)


def _text(file: Path) -> str:
    """The source with each list of imported names on one line."""
    text = file.read_text(encoding="utf-8")
    return re.sub(r"import \([^)]*\)", lambda found: " ".join(found[0].split()), text)


@cache
def _modules() -> dict[str, Path]:
    found = {}
    for package in dev.packages():
        for file in sources(package.path):
            parts = file.relative_to(package.path / "src").with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def _beside(file: Path, name: str) -> Path | None:
    """A helper of tests: a module in a folder of the test file, or above it up to its package."""
    for folder in () if "." in name else file.parents:
        if name in _helpers(folder):
            return folder / f"{name}.py"
        if folder.name == "tests" or folder == ROOT:
            break
    return None


@cache
def _helpers(folder: Path) -> set[str]:
    return {file.stem for file in folder.glob("*.py")}


# --- what a change asks for --------------------------------------------------------------------


def of_changes(arguments: list[str]) -> list[str]:
    """The arguments with the tests that `--changed` stands for."""
    bases = [argument for argument in arguments if argument.partition("=")[0] == "--changed"]
    base = bases[-1].partition("=")[2] or "origin/main"
    chosen = tests_for(changed_files(base))
    print(f"changes since {base} ask for: {' '.join(chosen) or 'no test'}", flush=True)
    # With no argument at all pytest would take everything.
    return [a for a in arguments if a not in bases] + (chosen or ["--version"])


def changed_files(base: str) -> list[str]:
    """What differs from where this branch left ``base``, with what is not committed."""
    fork = _git("merge-base", base, "HEAD")[0]
    return [
        *_git("diff", "--name-only", "--no-renames", fork),
        *_git("ls-files", "--others", "--exclude-standard"),
    ]


def _git(*arguments: str) -> list[str]:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise dev.Failure(f"`{' '.join(command)}` failed:\n{done.stderr.strip()}")
    return done.stdout.splitlines()


def tests_for(changed: Iterable[str]) -> list[str]:
    """The folders and files of tests that a change of these files asks for.

    A package asks for its tests, those of the packages that depend on it, and what reads all packages; the core, and
    what holds for all tests, ask for everything; all else (examples, scripts, benchmarks) for the whole system.
    """
    workspace = {str(p.path.relative_to(ROOT)): p for p in dev.packages()}
    users = dependents({p.name: declared(p.path) for p in workspace.values()})
    wanted: set[str] = set()
    for file in changed:
        place = next((p for p in workspace if file.startswith(f"{p}/")), "")
        folder, _, name = file.rpartition("/")
        if file.endswith(".md"):
            wanted |= set(PAGES)
        elif "tests" in file.removeprefix(place).split("/")[:2]:
            wanted.add(file if name.startswith("test_") else folder)
        elif file in EVERYTHING or place == "core":
            return list(EVERYWHERE)
        elif not place:
            wanted.add("tests")
        else:
            names = users[workspace[place].name] | {workspace[place].name}
            wanted |= {f"{p}/tests" for p, package in workspace.items() if package.name in names}
            # Most runs of the whole system consist of what the quickstart names.
            wanted |= {"tests"} if workspace[place].quickstart else set(PAGES)
    there = {each for each in wanted if (ROOT / each).exists()}
    return sorted(e for e in there if not any(e.startswith(f"{other}/") for other in there))


def dependents(needs: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Distribution → those that depend on it, through others too."""
    users = {name: {n for n, wants in needs.items() if normal(name) in wants} for name in needs}
    grown = True
    while grown:
        grown = False
        for name, direct in users.items():
            further = direct.union(*(users[user] for user in direct)) - {name}
            grown = grown or further != direct
            users[name] = further
    return users
