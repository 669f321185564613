"""In the place of SGLang's compiled kernels, on a machine that has none: every name can be imported, none can be called.

SGLang imports the names of kernels for CPUs at its start. With the attention backend ``torch_native`` and the sampling backend
``pytorch`` its layers then choose their implementations in PyTorch, since there is no AMX, and call none of them; one that is
called says its name.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any, NoReturn


class _Absent:
    """A kernel, or something with others."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self._name}.{name}")

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"{self._name} has no kernel for CPUs here")


class _Kernels(types.ModuleType):
    """A module that has every name."""

    __path__: list[str] = []  # noqa: RUF012 (as of any package)

    def __getattr__(self, name: str) -> _Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(f"{self.__name__}.{name}")


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes every module below."""

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        below = fullname.startswith(f"{__name__}.")
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if below else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Kernels(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Nothing is in it."""


sys.modules[__name__].__class__ = _Kernels
sys.meta_path.insert(0, _Submodules())
