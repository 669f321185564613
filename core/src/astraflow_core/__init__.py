"""The seams of AstraFlow: asynchronous reinforcement learning for language-model agents.

What a plugin's manifest needs is importable from here without loading anything heavy.
"""

from __future__ import annotations

from astraflow_core.component import API_VERSION, Command, Component, Kind
from astraflow_core.hookspecs import hookimpl

__version__ = "0.1.0"
__all__ = ["API_VERSION", "Command", "Component", "Kind", "__version__", "hookimpl"]
