"""Commands of a shell in the sandbox: the programs of the host that they may start, and the program that runs one."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Mapping

HOST_PROGRAMS = ("/bin", "/sbin", "/etc/alternatives")
"""Folders with programs, and with the links that lead to some of them, in addition to those that every program sees."""
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_OWN_FOLDER = "/tmp"  # noqa: S108 - of the sandbox's own tree
_PROGRAM = """\
import os
os.chdir({folder!r})
os.dup2(1, 2)
variables = {variables!r}
variables.setdefault("HOME", os.getcwd())
try:
    os.execve("/bin/bash", ["bash", "-c", {command!r}], variables)
except OSError:
    os.execve("/bin/sh", ["sh", "-c", {command!r}], variables)
"""


def python_of_host() -> list[str]:
    """Where the interpreter of this process lies, so that a command finds a Python, with its shared library."""
    folders = {os.path.dirname(os.path.realpath(sys.executable))}
    if library := sysconfig.get_config_var("LIBDIR"):
        name = str(sysconfig.get_config_var("LDLIBRARY") or "")
        folders |= {os.path.join(library, name)} if name.endswith(".so") else set()
    return sorted(folders)


def shell_program(command: str, folder: str, variables: Mapping[str, str]) -> str:
    """A program that becomes a shell, which runs ``command`` in ``folder``."""
    python = os.path.dirname(os.path.realpath(sys.executable))
    given = {
        "PATH": f"{_PATH}:{python}",
        "LANG": "C.UTF-8",
        "TMPDIR": _OWN_FOLDER,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PWD": folder,
        **variables,
    }
    return _PROGRAM.format(folder=folder, command=command, variables=given)
