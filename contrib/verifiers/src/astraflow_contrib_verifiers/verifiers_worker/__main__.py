"""``python __main__.py tasks`` prints the tasks of an environment, ``… serve SOCKET MIB`` plays episodes.

It is run as a file by an interpreter that has not installed this distribution, and must not import the modules next to it.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astraflow_contrib_verifiers.verifiers_worker.service import Loaded, Spec

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = "astraflow_contrib_verifiers"


def _find_own_package() -> None:
    """Make this distribution importable by name, without the folder in which it and others are installed."""
    sys.path[:] = [each for each in sys.path if each != _HERE]
    package = ModuleType(_PACKAGE)
    package.__path__ = [os.path.dirname(_HERE)]
    sys.modules.setdefault(_PACKAGE, package)


def load(spec: Spec) -> Loaded:
    """The environment, by the generation of verifiers that is installed."""
    from astraflow_contrib_verifiers.verifiers_worker.service import Refusal

    try:
        version = metadata.version("verifiers")
    except metadata.PackageNotFoundError:
        raise Refusal("load", f"{sys.executable} has no verifiers: install it there") from None
    generation = tuple(int(part) for part in version.split(".")[:2])
    if generation == (0, 4):
        from astraflow_contrib_verifiers.verifiers_worker.v1 import V1Environment

        return V1Environment(spec)
    if generation <= (0, 2):
        from astraflow_contrib_verifiers.verifiers_worker.v0 import V0Environment

        return V0Environment(spec)
    raise Refusal(
        "load",
        f"{sys.executable} has verifiers {version}; expected 0.4 for tasksets, or at most 0.2 for load_environment",
    )


_find_own_package()

if __name__ == "__main__":
    from astraflow_contrib_verifiers.verifiers_worker.service import main

    sys.exit(main(sys.argv[1:], load))
