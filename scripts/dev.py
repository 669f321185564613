#!/usr/bin/env python3
"""Set up the workspace and run it, its tests, its checks or its benchmarks.

Needs only Python 3.11+ and pip. Packages are found by their place (core/, libs/*, runtime/, testing/, plugins/*/*, contrib/*,
contrib/commands/*, contrib/trackers/*), installed editable into .venv/ in one call held to constraints.txt (of uv where it
understands pip's settings, else of pip), and installed again only when a pyproject.toml or constraints.txt changes.
ASTRAFLOW_VENV names another environment folder.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 (this very check is for older ones)
    sys.exit(
        f"AstraFlow needs Python 3.11 or newer; this is {sys.version.split()[0]} ({sys.executable}).\n"
        "Call this script with a newer one, e.g. `python3.12 scripts/dev.py run`, "
        "or `make run PYTHON=python3.12`."
    )

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import tiers
from installers import CONSTRAINTS as CONSTRAINTS
from installers import LOG, create, exit_with, install, pip, precompile, show
from installers import PYTHON as PYTHON
from installers import ROOT as ROOT
from installers import VENV as VENV
from installers import Failure as Failure

STAMP = VENV / "astraflow-setup.json"
PLACES = [
    "core", "libs/*", "runtime", "testing", "plugins/*/*", "contrib/*", "contrib/commands/*", "contrib/trackers/*",
]  # fmt: skip

BUILD_TOOLS = ("flit_core", "setuptools", "wheel")
TEST_TOOLS = ("pytest-timeout", "pytest-xdist", "hypothesis", "httpx", "msgpack", "ruff", "mypy")

# Apart from what others ask of mypy: a module that some call skipped has no attributes in the next.
MYPY_CACHE = ("--cache-dir", ".mypy_cache/check")


@dataclasses.dataclass(frozen=True)
class Package:
    """A distribution of this workspace."""

    path: Path
    name: str
    extras: frozenset[str]
    quickstart: bool
    own_environment: bool = False

    def requirement(self, profile: str) -> str:
        """Path and extras as pip wants them; a backend with an environment of its own stays out."""
        wanted = {"testing"} if profile == "test" else set()
        if not self.own_environment:
            wanted.add("runtime")
        extras = ",".join(sorted(wanted & self.extras))
        return f"{self.path}[{extras}]" if extras else str(self.path)


@dataclasses.dataclass(frozen=True)
class Stamp:
    """What the last complete set-up put into the environment."""

    digest: str = ""
    profile: str = ""
    names: tuple[str, ...] = ()

    @classmethod
    def read(cls) -> Stamp:
        """The stamp on disk, or an empty one."""
        try:
            data = json.loads(STAMP.read_text(encoding="utf-8"))
            return cls(data["digest"], data["profile"], tuple(data["names"]))
        except (FileNotFoundError, json.JSONDecodeError, KeyError):
            return cls()

    def covers(self, profile: str, digest: str) -> bool:
        """Whether `profile` of the workspace as it is now is installed."""
        return PYTHON.exists() and self.digest == digest and self.profile in (profile, "test")


def packages() -> list[Package]:
    """Every distribution of the workspace, found by its place."""
    found = []
    for pattern in PLACES:
        for file in sorted(ROOT.glob(f"{pattern}/pyproject.toml")):
            try:
                data = tomllib.loads(file.read_text(encoding="utf-8"))
                project = data["project"]
                own = data.get("tool", {}).get("astraflow", {})
                found.append(
                    Package(
                        path=file.parent,
                        name=project["name"],
                        extras=frozenset(project.get("optional-dependencies", {})),
                        quickstart=own.get("quickstart") is True,
                        own_environment=own.get("environment") == "own",
                    )
                )
            except (tomllib.TOMLDecodeError, KeyError) as error:
                raise Failure(f"{file.relative_to(ROOT)} is not a package: {error!r}") from error
    if not found or found[0].path.name != "core":
        raise Failure(f"no core/pyproject.toml under {ROOT}: is this a whole checkout?")
    return found


def setup(profile: str) -> None:
    """Make the environment hold `profile` ("run" or its superset "test"); do nothing if it does."""
    members = packages()
    digest = _digest(members)
    if Stamp.read().covers(profile, digest):
        return
    VENV.mkdir(parents=True, exist_ok=True)
    with _locked(VENV / "setup.lock"):
        stamp = Stamp.read()
        if stamp.covers(profile, digest):  # another call installed it while this one waited
            return
        if stamp.profile == "test":  # never remove what a developer has installed
            profile = "test"
        began = time.monotonic()
        create()
        STAMP.unlink(missing_ok=True)
        chosen = [p for p in members if profile == "test" or p.quickstart]
        print(f"installing {len(chosen)} packages and what they need into {show(VENV)} …")
        LOG.write_text("", encoding="utf-8")
        gone = set(stamp.names) - {p.name for p in members}
        if gone:
            pip("uninstall", "--yes", *sorted(gone))
        pip("install", "-c", str(CONSTRAINTS), *BUILD_TOOLS)
        editable = [arg for p in chosen for arg in ("-e", p.requirement(profile))]
        tools = TEST_TOOLS if profile == "test" else ()
        install("--no-build-isolation", "-c", str(CONSTRAINTS), *editable, *tools)
        precompile([p.path for p in chosen])
        done = Stamp(digest, profile, tuple(p.name for p in chosen))
        STAMP.write_text(json.dumps(dataclasses.asdict(done)), encoding="utf-8")
        print(f"installed in {time.monotonic() - began:.0f} s")


def _digest(members: list[Package]) -> str:
    """A key of everything that decides what is installed."""
    key = hashlib.sha256(f"{ROOT}\0{TEST_TOOLS}\0".encode())
    for file in (CONSTRAINTS, *(p.path / "pyproject.toml" for p in members)):
        key.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    return key.hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One set-up at a time; the kernel drops the lock if its holder dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another set-up of {show(VENV)} …")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(args: list[str]) -> int:
    """Run a config (the quickstart if none is named) with `astraflow run`."""
    setup(profile_of(args))
    if not args or args[0].startswith("-"):
        args = [str(ROOT / "examples" / "quickstart.toml"), *args]
    command = str(VENV / "bin" / "astraflow")
    sys.stdout.flush()
    # Replaces this process, so that Ctrl-C and SIGTERM reach the run only.
    os.execv(command, [command, "run", *args])


def profile_of(args: list[str]) -> str:
    """What `astraflow run` with these arguments needs: other examples name plugins that the quickstart does not."""
    examples = ROOT / "examples"
    files = {Path(arg).absolute() for arg in args if arg.endswith(".toml")}
    others = files - {examples / "quickstart.toml"}
    return "test" if any(examples in file.parents for file in others) else "run"


def test(args: list[str]) -> int:
    """Run the light tests, without those that need a GPU or are slow; pytest's arguments pass through. With `--changed`
    only those that the changes since origin/main ask for, or since another base with `--changed=BASE`."""
    setup("test")
    if any(arg.partition("=")[0] == "--changed" for arg in args):
        import selection  # imports this module

        args = selection.of_changes(args)
    return _pytest(tiers.LIGHT, *tiers.LIGHT_WORKERS, *args)


def fast(args: list[str]) -> int:
    """Run the pure tests, for every save: no process, no backend, nothing slow."""
    import selection

    setup("test")
    return _pytest(tiers.LIGHT, *tiers.LIGHT_WORKERS, "--pure", *args, *selection.pure_files())


def explore(args: list[str]) -> int:
    """Run the property tests among the light tests with new random examples."""
    import selection

    setup("test")
    os.environ["HYPOTHESIS_PROFILE"] = "explore"
    return _pytest(tiers.LIGHT, *tiers.WORKERS, *args, *selection.property_files())


def durations(args: list[str]) -> int:
    """Print what the tests cost beside the budgets; `durations --record` runs the light tests and writes it."""
    setup("test")
    if args[:1] == ["--record"]:
        return _pytest(tiers.LIGHT, *tiers.LIGHT_WORKERS, "--record-durations", *args[1:])
    return _call(str(ROOT / "scripts" / "durations.py"))


def heavy(args: list[str]) -> int:
    """Run the tests marked slow, four at a time, and then those with real backends, two at a time.

    With `--record-durations` it writes what each file costs, by which later calls begin with the longest."""
    import selection

    setup("test")
    slow, backend = (selection.marked_files(marker, args) for marker in ("slow", "backend"))
    if backend and "--record-durations" not in args:
        args = [*args, "--turns"]
    codes = [_pytest(tiers.SLOW, *tiers.SLOW_WORKERS, *args, *slow)]
    codes += [_pytest(tiers.BACKEND, *tiers.BACKEND_WORKERS, *args, *backend)]
    return max((code for code in codes if code != tiers.NO_TESTS), default=tiers.NO_TESTS)


def check(args: list[str]) -> int:
    """Run ruff, mypy --strict, the layout tests, and look at the tests' budgets and the commits' messages."""
    setup("test")
    sources = [str(p.path / "src") for p in packages()]
    steps = {
        "ruff check": ("-m", "ruff", "check", *args, "."),
        "ruff format": ("-m", "ruff", "format", "--check", "."),
        "mypy --strict": ("-m", "mypy", "--strict", *MYPY_CACHE, *sources, "scripts", "bench"),
        "layout": ("-m", "pytest", "-q", "tests/test_layout.py"),
        "budgets": (str(ROOT / "scripts" / "durations.py"),),
        "commit messages": (str(ROOT / "scripts" / "commit_messages.py"),),
    }
    fixes = {
        "ruff check": "`.venv/bin/ruff check --fix .` mends some of it",
        "ruff format": "`.venv/bin/ruff format .` mends it",
    }
    failed = []
    for name, command in steps.items():
        print(f"== {name}", flush=True)
        if _call(*command):
            failed.append(f"{name} ({fixes[name]})" if name in fixes else name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def bench(args: list[str]) -> int:
    """Run one benchmark (`bench NAME`) or all of them."""
    setup("test")
    return _call("-m", "bench", *args)


def gpu(args: list[str]) -> int:
    """Run every test and benchmark that needs a GPU, in 20 minutes at most, and write a report to paste."""
    setup("test")
    return _call(str(ROOT / "scripts" / "gpu.py"), *args)


def chaos(args: list[str]) -> int:
    """Inject faults into runs of real processes for some 20 minutes, and record the results."""
    return bench(["chaos", *args])


def downstream(args: list[str]) -> int:
    """Run the tests of the third-party plugins in downstream.toml against this tree."""
    setup("test")
    return _call(str(ROOT / "scripts" / "downstream.py"), *args)


def release(args: list[str]) -> int:
    """Build the release VERSION of all distributions in dist/, reproducibly, and test it."""
    setup("test")
    return _call(str(ROOT / "scripts" / "release.py"), *args)


def site(args: list[str]) -> int:
    """Build the documents as a site in dist/site, checked; `--serve` shows it on this machine."""
    setup("test")
    return _call(str(ROOT / "scripts" / "build_site.py"), *args)


def docs(args: list[str]) -> int:
    """Write the generated pages under docs/ again."""
    setup("test")
    return _call(str(ROOT / "scripts" / "docs.py"), *args)


def _pytest(markers: str, *args: str) -> int:
    """Run tests. An environment that they make holds the sources of this checkout, so it stays here."""
    os.environ.setdefault("ASTRAFLOW_ENVIRONMENTS", str(VENV / "envs"))
    # Without byte code each worker rewrites the assertions of all tests, and each process compiles what it imports.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    code = _call("-m", "pytest", "-m", markers, *args, variables=tiers.ONE_THREAD)
    if code != tiers.FAILED or not (again := tiers.to_run_again(ROOT)):
        return code
    print(f"== once more, alone: {', '.join(again)}", flush=True)
    code = _call("-m", "pytest", "-m", markers, *args, *tiers.ALONE, variables=tiers.ONE_THREAD)
    if code == 0:
        print(f"== UNSTEADY, to be fixed: {', '.join(again)} failed, and passed alone", flush=True)
    return code


def _call(*args: str, variables: Mapping[str, str] | None = None) -> int:
    """Run the environment's Python to its end, however often Ctrl-C is pressed. Environment ``variables`` hold where
    the caller's environment says nothing else."""
    sys.stdout.flush()
    interrupted = False
    environment = {**(variables or {}), **os.environ}
    with subprocess.Popen([str(PYTHON), *args], cwd=ROOT, env=environment) as process:
        while process.returncode is None:
            try:
                process.wait()
            except KeyboardInterrupt:
                interrupted = True
    if interrupted:
        raise KeyboardInterrupt
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def main(argv: list[str]) -> int:
    """Parse the command line and carry it out; returns the exit code."""
    parser = argparse.ArgumentParser(prog="scripts/dev.py", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    every = (
        run, test, fast, explore, heavy, durations, check, bench, chaos, gpu, docs, site, downstream, release,
    )  # fmt: skip
    actions = {f.__name__: f for f in every}
    installing = commands.add_parser("setup", help="install only")
    installing.add_argument("profile", nargs="?", choices=("run", "test"), default="test")
    for name, action in actions.items():
        summary = (action.__doc__ or "").split("\n")[0]
        commands.add_parser(name, help=summary, description=summary, add_help=False)
    # What follows such a command belongs to the program that it starts, options included.
    known, rest = parser.parse_args(argv[:1]), argv[1:]
    if known.command == "setup":
        setup(parser.parse_args(argv).profile)
        return 0
    return actions[known.command](rest)


if __name__ == "__main__":
    exit_with(main)
