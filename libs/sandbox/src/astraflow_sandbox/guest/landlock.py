"""Landlock: which files a program may read and write, and no signals and TCP to the outside where the kernel has that."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from astraflow_sandbox.guest import kernel

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH, _ASK_VERSION = 1, 1
_EXECUTE, _WRITE, _READ, _READ_FOLDER = 1, 2, 4, 8
_FILE_RIGHTS_OF_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
_LATEST_FILE_RIGHTS = 16
_TCP, _SCOPED = 0b11, 0b11
SCOPES_SIGNALS = 6
"""First version that keeps signals within."""


def version() -> int:
    """That of the kernel; :class:`OSError` if it has no Landlock."""
    return kernel.system_call("Landlock", _CREATE_RULESET, None, 0, _ASK_VERSION)


def ruleset(
    readable: Iterable[str], listed: Iterable[str], devices: Iterable[str], own: str
) -> int:
    """The descriptor of rules: to read what is below ``readable``, the names alone of what is below ``listed``, to use
    ``devices``, and everything below ``own``."""
    number = version()
    every = (1 << _FILE_RIGHTS_OF_VERSION.get(number, _LATEST_FILE_RIGHTS)) - 1
    handled = [every]
    handled += [_TCP] if number >= 4 else []
    handled += [_SCOPED] if number >= SCOPES_SIGNALS else []
    attributes = struct.pack(f"={len(handled)}Q", *handled)
    rules = kernel.system_call("Landlock", _CREATE_RULESET, attributes, len(attributes), 0)
    for path in readable:
        _allow(rules, path, _READ | (_READ_FOLDER | _EXECUTE if os.path.isdir(path) else 0))
    for path in listed:
        _allow(rules, path, _READ_FOLDER)
    for path in devices:
        _allow(rules, path, _READ | _WRITE)
    _allow(rules, own, every)
    return rules


def restrict(rules: int) -> None:
    """Hold this process and all that it starts to the rules; needs no_new_privs."""
    kernel.system_call("Landlock", _RESTRICT_SELF, rules, 0)


def _allow(rules: int, path: str, rights: int) -> None:
    if not os.path.exists(path):
        return
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = struct.pack("=Qi", rights, beneath)
    kernel.system_call("Landlock", _ADD_RULE, rules, _PATH_BENEATH, rule, 0)
    os.close(beneath)
