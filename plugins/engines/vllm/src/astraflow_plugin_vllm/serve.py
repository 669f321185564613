"""``vllm serve`` as a child that does not outlive its parent, even if that is killed.

Started as ``python -m astraflow_plugin_vllm.serve serve MODEL …`` in a process group of its own.
"""

from __future__ import annotations

import os

from astraflow_core.telemetry.parent import end_with


def main() -> None:
    """Watch the parent, then be vLLM's command."""
    end_with(os.getppid())
    from vllm.entrypoints.cli.main import main as vllm

    vllm()


if __name__ == "__main__":
    main()
