"""``astraflow simulate``: what a run would be with more RaaS, another staleness bound or a slower link."""

from __future__ import annotations

import argparse
import math
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_table
from astraflow_runtime.cli.run_directory import add_run, find_run

if TYPE_CHECKING:
    from astraflow_contrib_simulate.prediction import Figures, Prediction
    from astraflow_contrib_simulate.recording import Recording

MOST_SETTINGS = 1000
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)(bit|b)?(?:/s)?", re.IGNORECASE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    source = parser.add_argument_group("input of the prediction").add_mutually_exclusive_group()
    add_run(source)
    source.add_argument(
        "--recording", metavar="FILE", type=Path, help="a file that --save has written"
    )
    setting = parser.add_argument_group("the setting")
    setting.add_argument(
        "--replicas",
        metavar="N",
        default="",
        help="numbers of RaaS, such as 4, 1,2,8 or 1..16; default: as recorded",
    )
    setting.add_argument(
        "--max-staleness",
        metavar="N",
        default="",
        help="staleness bounds, written the same way; default: as recorded",
    )
    setting.add_argument(
        "--bandwidth",
        metavar="RATE",
        action="append",
        default=[],
        help="rate at which each RaaS fetches a version: 200MB/s, 10Gbit; may be repeated; default: as recorded",
    )
    setting.add_argument(
        "--gpus-per-raas", metavar="N", type=float, default=1.0, help="GPUs of one RaaS; default 1"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws from the recording")
    parser.add_argument("--save", metavar="FILE", type=Path, help="write the recording to a file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run)
    teach(
        parser,
        "overview.md",
        "simulate --replicas 1..16 --max-staleness 0..4",
        "simulate --run runs/quickstart-20260102-030405 --bandwidth 10Gbit",
    )


def run(arguments: argparse.Namespace) -> int:
    """Read, simulate and print."""
    from astraflow_contrib_simulate.prediction import predict, recommended, recorded
    from astraflow_contrib_simulate.simulator import Setting

    recording = _recording(arguments)
    if arguments.save is not None:
        recording.save(arguments.save)
    as_recorded = Setting(max(1, round(recording.replicas)), recording.max_staleness)
    replicas = numbers(arguments.replicas, "--replicas", 1) or [as_recorded.replicas]
    bounds = numbers(arguments.max_staleness, "--max-staleness", 0) or [as_recorded.max_staleness]
    rates: list[float | None] = [*map(bytes_per_s, arguments.bandwidth)] or [None]
    settings = [Setting(*each) for each in product(replicas, bounds, rates)]
    if len(settings) > MOST_SETTINGS:
        raise UserError(f"these are {len(settings)} settings; at most {MOST_SETTINGS} at once")
    if not 0 <= arguments.gpus_per_raas < math.inf:
        raise UserError(
            f"--gpus-per-raas {arguments.gpus_per_raas}: expected a number of at least 0"
        )
    gpus, seed = arguments.gpus_per_raas, arguments.seed
    happened = recorded(recording, gpus)
    again = predict(recording, as_recorded, gpus, seed)
    predictions = [predict(recording, setting, gpus, seed) for setting in settings]
    best = recommended(predictions)
    if arguments.json:
        print_json(
            {
                "run": recording.run,
                "recorded": {
                    **_setting(as_recorded),
                    "replicas": recording.replicas,
                    "policies": _figures(happened),
                },
                "recorded_setting_predicted": _described(again),
                "predictions": [_described(prediction) for prediction in predictions],
                "recommended": None if best is None else _setting(best.setting),
            }
        )
        return 0
    header = ("", "RaaS", "bound", "link", "policy", "step s", "waiting", "staleness", "rows/GPU-h")
    rows = _rows("happened", happened, f"{recording.replicas:.3g}", as_recorded)
    rows += _predicted("the same, predicted", again)
    for prediction in predictions:
        rows += _predicted("predicted", prediction)
    print_table(header, rows)
    if len(predictions) > 1 and best is not None:
        setting = best.setting
        print(
            f"\nrecommended: {setting.replicas} RaaS with max_staleness {setting.max_staleness}, the smallest setting "
            "whose steps are within 5 % of the fastest"
        )
    return 0


def numbers(text: str, option: str, least: int) -> list[int]:
    """``"1,2,4..8"`` as a list without repeats; :class:`UserError` names the option if it is none."""
    found: dict[int, None] = {}
    for part in filter(None, text.split(",")):
        first, dots, last = part.partition("..")
        if not (first.isdecimal() and (last.isdecimal() if dots else True)):
            raise UserError(f"{option} {text!r}: write 4, 1,2,8 or 1..16")
        begin, end = int(first), int(last) if dots else int(first)
        if begin < least or end < begin or end - begin > MOST_SETTINGS:
            raise UserError(
                f"{option} {text!r}: {part} is not a range of numbers of at least {least}"
            )
        found |= dict.fromkeys(range(begin, end + 1))
    return list(found)


def bytes_per_s(text: str) -> float:
    """``"200MB/s"`` or ``"10Gbit"`` as bytes per second, powers of ten."""
    match = _RATE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise UserError(f"--bandwidth {text!r}: write 200MB/s, or 10Gbit")
    bits = (match[3] or "B").lower() == "bit"
    return float(match[1]) * _UNITS[match[2].lower()] / (8 if bits else 1)


def _recording(arguments: argparse.Namespace) -> Recording:
    from astraflow_contrib_simulate.reading import read_run
    from astraflow_contrib_simulate.recording import load

    if arguments.recording is not None:
        return load(arguments.recording)
    return read_run(find_run(arguments.run))


def _predicted(what: str, prediction: Prediction) -> list[tuple[object, ...]]:
    if prediction.policies:
        return _rows(
            what, prediction.policies, str(prediction.setting.replicas), prediction.setting
        )
    setting = prediction.setting
    return [
        (what, setting.replicas, setting.max_staleness, _link(setting), "stands still", *("-",) * 4)
    ]


def _rows(
    what: str, policies: dict[str, Figures], replicas: str, setting: Any
) -> list[tuple[object, ...]]:
    return [
        (
            what, replicas, setting.max_staleness, _link(setting), name, f"{f.step_s:.3g}",
            f"{f.waiting_fraction:.0%}", _histogram(f.staleness), f"{f.rows_per_gpu_hour:.0f}",
        )
        for name, f in policies.items()
    ]  # fmt: skip


def _link(setting: Any) -> str:
    return "as it was" if setting.bandwidth is None else f"{setting.bandwidth / 1e6:g} MB/s"


def _histogram(staleness: dict[int, int]) -> str:
    total = sum(staleness.values())
    return " ".join(f"{lag}:{rows / total:.0%}" for lag, rows in staleness.items()) or "-"


def _described(prediction: Prediction) -> dict[str, Any]:
    return {**_setting(prediction.setting), "policies": _figures(prediction.policies)}


def _setting(setting: Any) -> dict[str, Any]:
    return {
        "replicas": setting.replicas,
        "max_staleness": setting.max_staleness,
        "bandwidth": setting.bandwidth,
    }


def _figures(policies: dict[str, Figures]) -> dict[str, Any]:
    return {
        name: {
            "step_s": f.step_s,
            "waiting_fraction": f.waiting_fraction,
            "staleness": {str(lag): rows for lag, rows in f.staleness.items()},
            "rows_per_gpu_hour": f.rows_per_gpu_hour,
        }
        for name, f in policies.items()
    }
