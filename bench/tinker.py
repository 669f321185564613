"""Training through the unmodified client of Tinker beside training without: steps and calls.

``step_over_native``: seconds of a step of ``examples/tinker/train.py``, the quickstart's task with batches of up to 512 sequences,
over those of the quickstart with one RaaS, without what comes before the second step. The script waits for its samples and then
for its update, while a run does both at once; ``step_cpu_over_native`` compares the CPU seconds of all processes, the client's
included.

``call_cpu_over_trainer``: CPU seconds of the server for a call of ``forward_backward`` with 512 sequences of the quickstart's size,
over those of the same trainer that is given the same batch in this process; ``client_call_cpu_ms`` is what the client takes
besides. Both sides compute with one thread. ``..._s`` and ``..._cpu_s`` are of one step.

``throughput_at_8``: steps per second of eight such scripts together on one server, over those of one; ``cpu_throughput_at_8``
the same for each CPU second of all processes, which tells what is lost to the machine's other work.

``adapters_..._over_...``: eight LoRA models that are sampled at once in one engine (``shared``), over an engine for each with merged
weights (``engines``) and over two engines that swap versions (``swaps``): tokens of each second and CPU second, and memory.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from astraflow_contrib_tinker.serving import served_model
from astraflow_contrib_tinker.wire.datums import Datum, GradientRequest
from astraflow_contrib_tinker.work.losses import prepared
from astraflow_contrib_tinker.work.rows import rows_of
from bench.support import trees
from bench.support.environments import environment
from bench.support.timing import cpu_of, interleaved, ratio, spread

ROOT = Path(__file__).parent.parent
BASELINES = Path(__file__).parent / "baselines"
REQUIREMENTS, CALLS = BASELINES / "tinker_requirements.txt", BASELINES / "tinker_calls.py"
SCRIPT, QUICKSTART = ROOT / "examples/tinker/train.py", ROOT / "examples/quickstart.toml"
PAIRS, CALLS_OF_A_SET = 5, 2
ROUNDS, STEPS = 1, 8
MANY, STEPS_OF_MANY = 8, 2
ADAPTER_ROUNDS = 3
SEQUENCES, PROMPT, SAMPLED = 512, 7, 6
MODELS = ROUNDS * (1 + MANY)
"""Those of scripts that ended are kept until the server misses their heartbeats."""
MOST_STEPS = 1000
"""Of a script, which is ended before."""
DEADLINE_S, MOST_S = 600.0, 1800.0
POLL_S = 0.02


@dataclass
class Sides:
    """Seconds and CPU seconds of a step, by round: of a run, of a script, and of any of many scripts at once."""

    native: list[tuple[float, float]] = field(default_factory=list)
    one: list[tuple[float, float]] = field(default_factory=list)
    many: list[tuple[float, float]] = field(default_factory=list)


def measure(quick: bool) -> dict[str, float]:
    """Calls and the trainer itself in turn; then rounds of a run and a script."""
    python = environment("tinker", REQUIREMENTS)
    result = calls(python, quick)
    print(f"tinker: {result}", file=sys.stderr)
    steps, of_many = (2, 1) if quick else (STEPS, STEPS_OF_MANY)
    sides = Sides()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as (server, told):
        for _ in range(1 if quick else ROUNDS):
            sides.native.append(native(steps))
            sides.one.append(scripts(python, server, told, 1, steps))
            sides.many.append(scripts(python, server, told, 2 if quick else MANY, of_many))
            print(f"tinker: {sides.native[-1]} {sides.one[-1]} {sides.many[-1]}", file=sys.stderr)
    return {**compared(sides), **result, **adapters(quick)}


def compared(sides: Sides) -> dict[str, float]:
    """The ratios of :class:`Sides`, and the medians that they are made of."""
    result: dict[str, float] = {}
    for number, unit in ((0, "s"), (1, "cpu_s")):
        middle = "" if unit == "s" else "cpu_"
        native, one, many = (
            [each[number] for each in side] for side in (sides.native, sides.one, sides.many)
        )
        result[f"step_{middle}over_native"] = ratio(one, native)
        result[f"{middle}throughput_at_8"] = ratio(one, many)
        if len(native) > 1:
            result[f"step_{middle}over_native_spread"] = spread(one, native)
        for name, values in (("native", native), ("one", one), ("many", many)):
            result[f"{name}_{unit}"] = statistics.median(values)
    return {name: round(value, 4) for name, value in result.items()}


# -- steps -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(folder: Path, **variables: str) -> Iterator[tuple[int, dict[str, str]]]:
    """``astraflow tinker serve`` in ``folder``: its process, and the variables that it prints for clients."""
    command = [sys.executable, "-m", "astraflow_runtime", "tinker", "serve", "--listen", "127.0.0.1:0",
               "--models", str(MODELS), "--directory", str(folder / "saved")]  # fmt: skip
    with _process(command, variables) as process:
        told: dict[str, str] = {}
        for line in _output(process):
            if line.startswith("export "):
                name, _, value = line.removeprefix("export ").strip().partition("=")
                told[name] = value
            if "TINKER_API_KEY" in told:
                break
        else:
            raise RuntimeError(f"the server did not start (exit code {process.poll()})")
        yield process.pid, told


def native(steps: int) -> tuple[float, float]:
    """Seconds and CPU seconds of a step of the quickstart, after its first."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "astraflow_runtime", "run", str(QUICKSTART), "--no-live",
            "--set", f"run.directory='{folder}'", "--set", "raas.replicas=1",
            "--set", "raas.max_concurrent_episodes=512", "--set", "eval.every=1000",
        ]  # fmt: skip
        with _process(command, {}) as process:

            def made() -> int:
                files = Path(folder).glob("*/metrics.jsonl")
                texts = [file.read_text() for file in files]
                whole = [line for text in texts for line in text.split("\n")[:-1]]
                return sum("step" in json.loads(line) for line in whole)

            return _between(made, [process.pid], 1, steps, process)


def scripts(
    python: Path, server: int, told: dict[str, str], count: int, steps: int
) -> tuple[float, float]:
    """Seconds and CPU seconds of a step when ``count`` scripts run at once: from the moment when each has made one until they
    have made ``steps`` each on average, for each step that any of them makes."""
    begun: list[int] = [0] * count
    command = [str(python), str(SCRIPT), "--steps", str(MOST_STEPS), "--held-out", "0"]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_process(command, told)) for _ in range(count)]

        def follow(number: int) -> None:
            for line in _output(clients[number]):
                begun[number] += line.startswith("step ")

        for number in range(count):
            threading.Thread(target=follow, args=(number,), daemon=True).start()
        pids = [server, *(client.pid for client in clients)]
        _between(lambda: min(begun), pids, 2, 2, *clients)
        before = sum(begun)
        return _between(lambda: sum(begun) - before, pids, 0, count * steps, *clients)


def _between(
    made: Callable[[], int],
    pids: Sequence[int],
    first: int,
    last: int,
    *processes: subprocess.Popen[str],
) -> tuple[float, float]:
    """Seconds, and CPU seconds of ``pids``, of a step from the end of step ``first`` to that of ``last``."""
    end = time.monotonic() + DEADLINE_S
    began: tuple[float, float, int] | None = None
    while time.monotonic() < end:
        now = made()
        if began is None and now >= first:
            began = time.monotonic(), _cpu_s(pids), now
        if began is not None and now >= last:
            steps = max(1, now - began[2])
            return (time.monotonic() - began[0]) / steps, (_cpu_s(pids) - began[1]) / steps
        ended = [process.poll() for process in processes]
        if any(code is not None for code in ended):
            raise RuntimeError(f"a process ended after {now} of {last} steps: {ended}")
        time.sleep(POLL_S)
    raise TimeoutError(f"{made()} of {last} steps were made within {DEADLINE_S:.0f} s")


# -- calls -----------------------------------------------------------------------------------------


def calls(python: Path, quick: bool) -> dict[str, float]:
    """CPU seconds of a call, of the server over the trainer's own."""
    count = 1 if quick else CALLS_OF_A_SET
    with tempfile.TemporaryDirectory() as name:
        folder, spent = Path(name), list[float]()
        data = _data()
        np.savez(folder / "data.npz", **data)
        own = _trainer_alone(folder, data, count)
        command = [str(python), str(CALLS), str(folder / "data.npz")]
        with (
            served(folder, OMP_NUM_THREADS="1") as (server, told),
            _process(command, told) as client,
        ):
            assert client.stdin is not None and client.stdout is not None
            orders, answers = client.stdin, client.stdout

            def through_the_client() -> float:
                before = cpu_of(server)
                orders.write(f"{count}\n")
                orders.flush()
                spent.append(float(answers.readline()) / count)
                return (cpu_of(server) - before) / count

            sides = interleaved(1 if quick else PAIRS, through_the_client, own)
    result = {
        "call_cpu_over_trainer": ratio(*sides),
        "server_call_cpu_ms": 1e3 * statistics.median(sides[0]),
        "trainer_call_cpu_ms": 1e3 * statistics.median(sides[1]),
        "client_call_cpu_ms": 1e3 * statistics.median(spent[1:]),
    }
    if not quick:
        result["call_cpu_over_trainer_spread"] = spread(*sides)
    return {name: round(value, 4) for name, value in result.items()}


def _data() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    sampled = np.arange(1, PROMPT + SAMPLED) >= PROMPT
    shape = (SEQUENCES, len(sampled))
    return {
        "tokens": rng.integers(1, 27, (SEQUENCES, PROMPT + SAMPLED)),
        "logprobs": np.broadcast_to(np.where(sampled, -3.0, 0.0), shape).astype(np.float32),
        "advantages": (sampled * rng.normal(0, 1, (SEQUENCES, 1))).astype(np.float32),
    }


def _trainer_alone(folder: Path, data: dict[str, Any], count: int) -> Callable[[], float]:
    """The trainer of the server in this process; each call gives the CPU seconds in which it computes the batch once."""
    import torch

    torch.set_num_threads(1)
    base = served_model(None, None, [], folder / "scratch")
    use, keys = base.trainer
    base = dataclasses.replace(base, trainer=(use, {**keys, "threads": 1}))
    trainer: Any = base.build_trainer(0, 0)
    asked = [
        Datum(
            tokens[:-1].astype(np.int32),
            {"target_tokens": tokens[1:], "logprobs": logprobs, "advantages": advantages},
        )
        for tokens, logprobs, advantages in zip(*data.values(), strict=True)
    ]
    rows = rows_of(asked, base.config.vocabulary, base.config.positions)
    request = GradientRequest("", 1, asked, "ppo", {}, True)
    algorithm, batch = prepared(request, rows, base.catalog, base.context("trainer", 0))

    def compute() -> float:
        began = time.process_time()
        for _ in range(count):
            trainer.accumulate(batch, algorithm, 0, True)
        return (time.process_time() - began) / count

    return compute


# -- adapters --------------------------------------------------------------------------------------


def adapters(quick: bool) -> dict[str, float]:
    """What :mod:`bench.support.adapter_engines` measures, one process after the other."""
    result: dict[str, float] = {}
    found: dict[str, dict[str, float]] = {}
    for mode in ("shared",) if quick else ("shared", "engines", "swaps"):
        command = [
            sys.executable,
            "-m",
            "bench.support.adapter_engines",
            mode,
            str(1 if quick else ADAPTER_ROUNDS),
        ]
        with _process(command, {"OMP_NUM_THREADS": "1"}) as process:
            found[mode] = json.loads(_output(process).readline())
        result |= {f"adapters_{mode}_{name}": round(v, 1) for name, v in found[mode].items()}
    for mode in found.keys() - {"shared"}:
        for name, value in found[mode].items():
            result[f"adapters_{name}_over_{mode}"] = round(found["shared"][name] / value, 3)
    return result


# -- processes -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _process(command: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process with pipes, ended with the block and all that it started, and after :data:`MOST_S`, so that no line of it is
    waited for without end."""
    process = subprocess.Popen(
        command, env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )  # fmt: skip
    late = threading.Timer(MOST_S, trees.kill, [process.pid])
    late.daemon = True
    late.start()
    try:
        yield process
    finally:
        late.cancel()
        trees.kill(process.pid)
        process.wait()


def _output(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(map(trees.cpu_s, pids))
