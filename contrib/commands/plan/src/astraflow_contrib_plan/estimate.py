"""Seconds of a step, hours and cost: from a recorded run by the simulator, from figures that are given, or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import UserError

SIMULATE_S = 300.0


@dataclass(frozen=True)
class TimeEstimate:
    """Seconds of a step of the slowest policy, how many steps, and where the seconds come from."""

    step_s: float
    steps: int
    origin: str

    @property
    def hours(self) -> float:
        """The hours of all steps."""
        return self.step_s * self.steps / 3600

    def cost(self, gpus: int, per_hour: float) -> float:
        """The cost of that many GPUs for all that time."""
        return self.hours * gpus * per_hour


def estimate(
    config: RunConfig, recorded: Path | None, tokens_per_s: float | None
) -> TimeEstimate | None:
    """What is known of the time; ``None`` without a record or a figure."""
    if recorded is not None:
        return _simulated(config, recorded)
    if tokens_per_s is not None:
        return _by_throughput(config, tokens_per_s)
    return None


def _by_throughput(config: RunConfig, tokens_per_s: float) -> TimeEstimate:
    tokens = max(policy.batch_sequences for policy in config.policies.values())
    tokens *= config.sampling.max_tokens
    origin = (
        f"{tokens} tokens a batch, each completion as long as sampling.max_tokens, at {tokens_per_s:g} tokens/s "
        "(--tokens-per-s); trainers are taken to be no slower"
    )
    return TimeEstimate(tokens / tokens_per_s, config.run.steps, origin)


def _simulated(config: RunConfig, recorded: Path) -> TimeEstimate:
    """By ``astraflow simulate``, with the number of RaaS and the staleness bound of this config."""
    command = [
        *(sys.executable, "-m", "astraflow_runtime", "simulate", "--run", str(recorded), "--json"),
        *("--replicas", str(config.raas.replicas)),
        *("--max-staleness", str(config.run.max_staleness)),
    ]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SIMULATE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"--from {recorded}: the simulation did not end within {SIMULATE_S:g} s; give --tokens-per-s instead"
        ) from error
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(
            f"--from {recorded}: `astraflow simulate` failed: {said.removeprefix('astraflow: ')}"
        )
    (prediction,) = json.loads(done.stdout)["predictions"]
    steps = [policy["step_s"] for policy in prediction["policies"].values()]
    if not steps:
        raise UserError(
            f"--from {recorded}: in the simulation of {config.raas.replicas} RaaS with max_staleness "
            f"{config.run.max_staleness} no policy makes progress; try other values with `astraflow simulate`"
        )
    origin = (
        f"the simulation of {recorded} with {config.raas.replicas} RaaS and max_staleness {config.run.max_staleness}; "
        "model, batches and lengths are those recorded there"
    )
    return TimeEstimate(max(steps), config.run.steps, origin)
