"""The cost of the reward ``math_verify``, and the delay of other answers by hostile ones.

``quick_us`` is the CPU time of a call that numbers decide. ``loop_p99_ms`` is the CPU time that a call takes on the event loop, for a
mix of which a tenth is hostile. ``beside_p50_ms`` and ``beside_p99_ms`` are the wall time of calls that are not hostile in that
mix, where ``rate`` calls arrive a second (at random), ``hostile_p99_ms`` that of those that are; on a machine that does something
else they are longer. ``per_s`` are calls of the mix in a second with eight under way at once, ``symbolic_per_s`` of calls that all
take mathematics, one worker each.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from pathlib import Path

import numpy as np

from astraflow_contrib_math_verify.config import MathVerifyConfig
from astraflow_contrib_math_verify.reward import MathVerify
from astraflow_core.types import Completion, Prompt, TrajectoryView
from astraflow_testing.conformance.subject import context

AT_ONCE, RATE = 8, 100
NUMBERS = [("12", r"\boxed{12}"), ("12", "So there are 13."), (r"\frac{1}{2}", r"\boxed{0.5}")]
SYMBOLIC = [
    (r"3\sqrt{2}", r"\boxed{\sqrt{18}}"), ("(x+1)^2", r"\boxed{x^2+2x+1}"), ("2x", r"\boxed{x+x+%d}"),
    (r"\frac{\pi}{2}", r"\boxed{\pi/%d}"), ("x=5", r"\boxed{%d}"), ("50\\%%", r"\boxed{\frac{1}{2}+%d}"),
]  # fmt: skip
HOSTILE = [
    "9^{9^{9^9}}", "99999999!", "2^{100000000%d}", "(" * 100 + "%d" + ")" * 100, "7%d" * 120, "x" * 300,
    r"\sqrt{" * 40 + "%d" + "}" * 40, r"\frac{1}{" * 30 + "%d" + "}" * 30, r"\sum_{n=1}^{10000000%d} n^7",
    r"\int_0^%d e^{x^{x^x}} dx", "(x+%d)^{9999}+(x+2)^{9998}", r"\prod_{k=1}^{99%d} k",
    r"\tan(\tan(x))^{%d}+(x+y+z)^{98}", r"\frac{(a+b+c+d)^{60}}{(a+b)^{%d}}",
]  # fmt: skip


def measure(quick: bool) -> dict[str, float]:
    """The figures."""
    return asyncio.run(_measured(400 if quick else 4000))


async def _measured(calls: int) -> dict[str, float]:
    reward = MathVerify(MathVerifyConfig.model_validate({}), context("raas", Path()))
    await reward.score(_view("x^2", r"\boxed{xx}"))
    began = time.process_time()
    for number in range(calls):
        await reward.score(_view(*NUMBERS[number % 3]))
    quick_us = 1e6 * (time.process_time() - began) / calls
    mix = _mix(calls)
    loop = []
    for _, view in mix[: calls // 4]:
        cpu = time.process_time()
        await reward.score(view)
        loop.append(time.process_time() - cpu)
    waited: dict[bool, list[float]] = {False: [], True: []}

    async def call(hostile: bool, view: TrajectoryView) -> None:
        wall = time.perf_counter()
        await reward.score(view)
        waited[hostile].append(time.perf_counter() - wall)

    draw = random.Random(3)
    async with asyncio.TaskGroup() as under_way:
        for hostile, view in _mix(calls, seed=2):
            under_way.create_task(call(hostile, view))
            await asyncio.sleep(draw.expovariate(RATE))
    queue = iter(_mix(calls, seed=4))

    async def caller() -> None:
        for _, view in queue:
            await reward.score(view)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    per_s = calls / (time.perf_counter() - began)
    symbolic = [_symbolic(random.Random(n), n) for n in range(calls // 20)]
    began = time.perf_counter()
    for view in symbolic:
        await reward.score(view)
    return {
        "quick_us": quick_us,
        "loop_p99_ms": 1e3 * _p99(loop),
        "beside_p50_ms": 1e3 * statistics.median(waited[False]),
        "beside_p99_ms": 1e3 * _p99(waited[False]),
        "hostile_p99_ms": 1e3 * _p99(waited[True]),
        "rate": float(RATE),
        "per_s": per_s,
        "symbolic_per_s": len(symbolic) / (time.perf_counter() - began),
        "calls": float(calls),
    }


def _mix(calls: int, seed: int = 1) -> list[tuple[bool, TrajectoryView]]:
    """A tenth hostile, a tenth mathematics, the rest numbers; of the hostile ones most are met more than once, as a
    policy repeats what it has found."""
    draw, made = random.Random(seed), []
    for _ in range(calls):
        kind, number = draw.random(), draw.randrange(10, 99)
        if kind < 0.1:
            text = draw.choice(HOSTILE).replace("%d", str(number % 20 + 10))
            made.append((True, _view("7", rf"\boxed{{{text}}}")))
        elif kind < 0.2:
            made.append((False, _symbolic(draw, number)))
        else:
            made.append((False, _view(*draw.choice(NUMBERS))))
    return made


def _symbolic(draw: random.Random, number: int) -> TrajectoryView:
    expected, text = draw.choice(SYMBOLIC)
    return _view(expected.replace("%%", "%"), text.replace("%d", str(number)))


def _view(expected: str, text: str) -> TrajectoryView:
    said = Completion("p", text, np.zeros(1, np.int32), "stop")
    return TrajectoryView(Prompt("q", {"answer": expected}), (said,))


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]
