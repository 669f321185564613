"""Errors written for people: what is at fault, what was expected, what to do next."""

from __future__ import annotations


class AstraFlowError(Exception):
    """Base of every error that AstraFlow raises on purpose.

    ``exit_code`` is what the command line returns when the error ends it.
    """

    exit_code = 1


class UserError(AstraFlowError):
    """A mistake that the user can fix; printed without a traceback."""

    exit_code = 2


class ConfigError(UserError):
    """A configuration that does not validate; carries every problem found, not only the first."""

    def __init__(self, problems: list[str], source: str = "") -> None:
        self.problems = problems
        self.source = source
        head = f"{source}: " if source else ""
        noun = "problem" if len(problems) == 1 else "problems"
        lines = "\n".join(f"  {problem}" for problem in problems)
        super().__init__(f"{head}{len(problems)} {noun} in the configuration\n{lines}")


class PluginError(UserError):
    """A component that a run names is missing, ambiguous, broken or incompatible."""


class VersionSkew(PluginError):
    """A process of a run has a different version of a distribution than the run started with."""


class PreflightError(UserError):
    """The components of a run do not fit together, or a resource that it needs is absent."""


class PromptError(UserError):
    """A prompt source cannot deliver: missing or malformed data, named by file and line."""


class RunFailed(AstraFlowError):
    """A run that started and did not finish."""


class WorkflowError(AstraFlowError):
    """An episode failed: the workflow or its reward raised, or missed its deadline."""


class EnvironmentFailed(WorkflowError):
    """An environment could not continue, so its episode has no reward. ``kind`` is the word by which it is counted, such as
    ``"timeout"`` or ``"network"``: lower-case letters, digits and underscores; ``reason`` is for a person."""

    def __init__(self, kind: str, reason: str) -> None:
        self.kind, self.reason = kind, reason
        super().__init__(f"{kind}: {reason}")


class NonFiniteLoss(RunFailed):
    """The loss or a gradient of a mini-batch was NaN or infinite; no optimizer step was made."""


class NoRoom(AstraFlowError):
    """Something was not saved because the disk is full."""


class WeightsError(AstraFlowError):
    """A version of the weights could not be obtained whole and verified; nothing was loaded."""


class WrongVersion(AstraFlowError):
    """A pinned request reached an engine that serves another version."""


class EngineLost(AstraFlowError):
    """An engine can no longer serve, for good: its backend died, hangs or is in an unknown state. Its
    host is restarted."""


class WireError(AstraFlowError):
    """A message that does not follow the wire format: what was expected and what arrived."""


class Refused(AstraFlowError):
    """A service refused a request (4xx); ``status`` is the HTTP status, the text its reason."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


class RaasRefused(Refused):
    """The dataflow does not admit this RaaS, or another process has its name: restarting it would not help."""

    exit_code = 3


class DeadlineExceeded(AstraFlowError):
    """A wait reached its deadline: names what it waited for, the reason and the seconds. ``had_no_room``: the awaited service
    had reported that it waits for disk space, and that time does not count towards a deadline."""

    def __init__(
        self, waited_for: str, what: str, seconds: float, had_no_room: bool = False
    ) -> None:
        self.waited_for, self.what, self.seconds = waited_for, what, seconds
        self.had_no_room = had_no_room
        super().__init__(f"gave up after {seconds:.1f} s waiting for {waited_for}: {what}")
