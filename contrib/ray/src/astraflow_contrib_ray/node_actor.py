"""The actor on each node: it starts the agent of that node and waits for it."""

from __future__ import annotations

import os
import subprocess
import sys


class NodeActor:
    """One on each node. Its arguments and results are paths, numbers and texts: no batch, weight
    or secret is in an object of Ray."""

    def __init__(self) -> None:
        self._agent: subprocess.Popen[bytes] | None = None

    def gpus(self) -> list[str]:
        """The GPUs that Ray gave this actor."""
        import ray

        return [str(gpu) for gpu in ray.get_gpu_ids()]

    def run(self, program: str, description: str) -> str:
        """Run the agent to its end; what it said if it failed. It ends with this process."""
        variables = dict(os.environ)
        variables.pop("CUDA_VISIBLE_DEVICES", None) if not self.gpus() else None
        done = subprocess.run(
            [sys.executable, "-I", "-S", program, "dial", description],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
        )
        said = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return "".join(said) if done.returncode else ""
