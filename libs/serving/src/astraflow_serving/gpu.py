"""Whether this machine has a GPU, for what may import nothing heavy."""

from __future__ import annotations

from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/version")
"""There is an NVIDIA driver where this exists."""
