"""Chooses the kernel."""

from __future__ import annotations

import importlib.util
import logging

from astraflow_core.errors import UserError
from astraflow_plugin_delta.coding.codec import Kernel
from astraflow_plugin_delta.coding.kernel_numpy import NumpyKernel

log = logging.getLogger(__name__)


def load_kernel(name: str) -> Kernel:
    """The kernel ``numba`` or ``numpy``; ``auto`` takes the first that can be imported.

    Raises :class:`UserError` if Numba is asked for and not installed.
    """
    present = importlib.util.find_spec("numba") is not None
    if name == "numpy" or (name == "auto" and not present):
        if name == "auto":
            log.info("numba is not installed: deltas are coded by NumPy, several times slower")
        return NumpyKernel()
    if not present:
        raise UserError(
            "transport 'delta' has kernel = \"numba\", which is not installed: "
            "pip install 'astraflow-plugin-delta[runtime]', or choose \"numpy\""
        )
    from astraflow_plugin_delta.coding.kernel_numba import NumbaKernel

    return NumbaKernel()
