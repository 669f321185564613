"""What torch.compile needs on this machine."""

from __future__ import annotations

import os
import shutil

import torch

from astraflow_core.errors import UserError

COMPILERS = ("g++", "clang++", "c++")


def check_compiler(key: str, device: torch.device) -> None:
    """Refuse (:class:`UserError`) what ``key`` asks for where no C++ compiler is at hand: on CPU the code that torch
    generates is C++."""
    chosen = os.environ.get("CXX")
    candidates = (chosen,) if chosen else COMPILERS
    if device.type == "cpu" and not any(shutil.which(name) for name in candidates):
        raise UserError(
            f"{key} compiles C++ on CPU, and there is no {' or '.join(candidates)}: install g++, or name a compiler in "
            "CXX"
        )
