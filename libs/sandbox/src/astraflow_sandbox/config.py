"""The table of a sandbox in the configuration of a component."""

from __future__ import annotations

from pydantic import Field

from astraflow_core.config.models import ConfigModel, PositiveInt, Seconds
from astraflow_sandbox.code_runner import ProgramLimits
from astraflow_sandbox.subprocess_runner import WarmRunner


class SandboxTable(ConfigModel):
    """The sandbox in which programs run, and its limits."""

    isolated: bool = Field(
        default=True,
        description="Isolate programs from files, the network and other processes; false if the whole environment "
        "is already a sandbox.",
    )
    cpu_s: PositiveInt = Field(default=4, description="CPU time limit of a program, in seconds.")
    deadline_s: Seconds = Field(
        default=30.0, description="Wall time limit of a program, in seconds."
    )
    memory_mb: PositiveInt = Field(default=512, description="Address space limit of a program.")
    packages: list[str] = Field(
        default=[],
        description="Packages that programs may import besides the standard library, such as numpy.",
    )

    def runner(self) -> WarmRunner:
        """A sandbox that this host can offer. :class:`~astraflow_core.errors.PreflightError` if it cannot."""
        limits = ProgramLimits(self.cpu_s, self.deadline_s, self.memory_mb)
        runner = WarmRunner(limits, isolated=self.isolated, packages=self.packages)
        runner.check()
        return runner
