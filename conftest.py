"""What holds for the tests of every package."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import time_limits
import turns
from hypothesis import settings
from recorder import Recorder
from surroundings import depends_on_who_runs_them, heed_interrupts
from temporary import own_folder, remove
from tiers import HEAVY_UNTIL, SLOW_DEMANDS, left_out, out_of_time
from workspace import HEAVY

# No deadline, since the time of an example depends on the load of the machine. The same examples each time: a test that
# passes passes everywhere. HYPOTHESIS_PROFILE=explore draws new ones, and more; what it finds becomes an @example.
settings.register_profile("any machine", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None, max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "any machine"))

TEMPORARY = pytest.StashKey[tuple[int, Path]]()
STARTS = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """``--dist loadscope`` deals tests out by package, ``loadfile`` the longest files first; see :mod:`scheduling`."""
    import scheduling

    chosen = {"loadscope": scheduling.ByPackage, "loadfile": scheduling.LongestFirst}
    scheduler = chosen.get(config.getoption("dist"))
    return scheduler and scheduler(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("astraflow")
    group.addoption("--record-durations", action="store_true", help="write tests/durations.json")
    group.addoption("--forked-workers", type=int, default=0, help="see scripts/forked_workers.py")
    group.addoption("--turns", action="store_true", help="see scripts/turns.py")
    group.addoption("--pure", action="store_true", help="skip what proves to be not pure")


@pytest.hookimpl(trylast=True)  # the reporter has already read variables such as NO_COLOR
def pytest_configure(config: pytest.Config) -> None:
    for name in depends_on_who_runs_them(os.environ):
        del os.environ[name]
    heed_interrupts()
    if folder := own_folder():
        config.stash[TEMPORARY] = os.getpid(), folder
    config.pluginmanager.register(time_limits)
    config.addinivalue_line("markers", f"{turns.MARK}(*patterns, unit): see scripts/turns.py")
    if config.getoption("record_durations"):
        config.pluginmanager.register(Recorder())
    workers = config.getoption("forked_workers")
    if workers and not config.option.usepdb and config.getoption("numprocesses", None) is None:
        from forked_workers import ForkedWorkers

        config.pluginmanager.register(ForkedWorkers(workers))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    pid, folder = config.stash.get(TEMPORARY, (0, Path()))
    if pid == os.getpid():  # and not a fork of a test
        remove(folder)


def pytest_sessionstart(session: pytest.Session) -> None:
    starts_workers = session.config.getoption("numprocesses", None)
    if session.config.getoption("pure") and not starts_workers:
        forks_workers = session.config.getoption("forked_workers")
        sys.addaudithook(partial(_pure, os.getpid() if forks_workers else 0))


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Any]:
    """For ``astraflow_testing.runs.User``, whose processes it forks; None where processes are no forks as this needs them."""
    with _fork_server() as server:
        yield server


@pytest.fixture(scope="session")
def heavy_fork_server() -> Iterator[Any]:
    """Likewise, of runs with heavy imports such as torch."""
    from astraflow_testing.forked_runs import HEAVY

    with _fork_server(HEAVY) as server:
        yield server


@contextlib.contextmanager
def _fork_server(*kind: str) -> Iterator[Any]:
    from astraflow_testing.forked_runs import RunForkServer

    server = RunForkServer(*kind) if sys.platform == "linux" else None
    yield server
    if server:
        server.close()


@pytest.fixture(scope="session")
def someone(fork_server: Any) -> Callable[[Path], Any]:
    """A user in a folder; their commands and runs are forked where that is possible."""
    return _somebody(fork_server)


@pytest.fixture(scope="session")
def someone_with_imports(heavy_fork_server: Any) -> Callable[[Path], Any]:
    """Likewise, where the runs have heavy imports such as torch."""
    return _somebody(heavy_fork_server)


def _somebody(server: Any) -> Callable[[Path], Any]:
    from astraflow_testing.forked_runs import ForkedUser
    from astraflow_testing.runs import User

    return lambda folder: ForkedUser(folder, server) if server else User(folder)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[Any]:
    """Modules and tests live until the end: the garbage collector need not visit them repeatedly."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # Hypothesis has a callback for each collection
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return left_out(collection_path, config.option.markexpr) or None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of a conformance suite that take long for every component as slow."""
    if any(getattr(item, "originalname", "") in demands for demands in SLOW_DEMANDS.values()):
        item.add_marker("slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("turns") and (now := turns.subjects(items)):
        others = turns.not_due(now, turns.read(), turns.turn(turns.SHARES, turns.EVERYTHING))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
        items[:] = [item for item in items if item.nodeid not in others]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    markers = (marker.name for marker in item.iter_markers())
    if out_of_time(markers, os.environ.get(HEAVY_UNTIL, ""), time.time()):
        pytest.skip("out of time: this machine is too slow for all heavy tests")


def _pure(forks: int, event: str, arguments: tuple[Any, ...]) -> None:
    """Skip a file that starts processes or imports heavy modules without declaring it, for instance in a fixture. The
    process ``forks``, which forks the workers, is exempt."""
    if (event in STARTS and os.getpid() != forks) or (event == "import" and arguments[0] in HEAVY):
        pytest.skip(
            " ".join(["not pure:", event, *map(str, arguments[:1])]), allow_module_level=True
        )
