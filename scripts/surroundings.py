"""What the tests do not depend on: variables of the environment, and whether SIGINT is ignored."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from fnmatch import fnmatchcase

OF_WHO_RUNS_THEM = (
    # the terminal, if there is one
    "CI", "GITHUB_ACTIONS", "TERM", "COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "CLICOLOR*",
    "PY_COLORS",
    # proxies, which clients in Python ask for what is on this machine too
    "*_PROXY", "*_proxy",
    # the repository of a hook of git that runs them
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX",
    # a job of a cluster, a run of ours
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_*", "MASTER_*", "TORCHELASTIC_*",
    "SLURM_*", "ASTRAFLOW_TOKEN", "ASTRAFLOW_DATAFLOW", "ASTRAFLOW_LAUNCHER", "ASTRAFLOW_HOST_ADDRESS", "ASTRAFLOW_ORIGIN",
    "ASTRAFLOW_START", "ASTRAFLOW_LOG_LEVEL", "ASTRAFLOW_TRACEBACK", "ASTRAFLOW_DRY_CALL_S",
    "ASTRAFLOW_CURVES", "ASTRAFLOW_IMPORTS",
    "ASTRAFLOW_DISABLE_PLUGINS",
    # what interpreters and libraries that tests start would do otherwise
    "PYTHONWARNINGS", "PYTHONOPTIMIZE", "PYTHONIOENCODING", "PYTHONUNBUFFERED", "PYTHONSAFEPATH", "PYTHONDEVMODE",
    "PYTHONASYNCIODEBUG", "PYTHONINSPECT", "PYTHONSTARTUP", "MPLBACKEND", "MALLOC_*",
)  # fmt: skip
"""Patterns of their names. What says where things are stays: ``HOME``, ``PATH``, ``TMPDIR``, caches, indexes of pip;
and so does how many threads a machine gives."""


def depends_on_who_runs_them(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that tests are to run without."""
    return [name for name in names if any(fnmatchcase(name, p) for p in OF_WHO_RUNS_THEM)]


def heed_interrupts() -> None:
    """Handle SIGINT. A shell ignores it in what it starts in the background, and so would every process of a test."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
