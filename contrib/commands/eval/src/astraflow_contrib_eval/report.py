"""What people see of an evaluation: how far it is, and its figures as tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from astraflow_contrib_eval.evaluation import SetEpisodes
from astraflow_runtime.cli.output import print_line, print_table
from astraflow_runtime.launch.view.formatting import count, duration

_EVERY_S = 10.0
_ON_TERMINAL_S = 0.5


class EvaluationProgress:
    """Reports on ``err``: on a terminal in one line that changes, else in a line every ten seconds."""

    def __init__(self, err: TextIO, sets: Mapping[str, SetEpisodes], label: str) -> None:
        self._err, self._sets, self._label = err, sets, label
        self._tty = err.isatty()
        self._began = self._last_shown = time.monotonic()
        self._width = 0

    def starting(self) -> None:
        """The engines start."""
        self._began = self._last_shown = time.monotonic()
        self._show(f"{self._label}: starting")

    def began(self) -> None:
        """Report that the processes have started."""
        self._began = self._last_shown = time.monotonic()
        self._show(self._line())

    def look(self) -> None:
        """An episode ended."""
        now = time.monotonic()
        if now - self._last_shown >= (_ON_TERMINAL_S if self._tty else _EVERY_S):
            self._last_shown = now
            self._show(self._line())

    def end(self) -> None:
        """End the progress report."""
        self._show(self._line())
        if self._tty:
            self._err.write("\n")
            self._err.flush()

    def _line(self) -> str:
        planned = sum(each.planned for each in self._sets.values())
        failed = sum(each.failed for each in self._sets.values())
        done = failed + sum(each.played for each in self._sets.values())
        parts = [f"{self._label}: {done} of {planned} episodes"]
        if failed:
            parts.append(f"{failed} failed")
        if 0 < done < planned:
            left = (time.monotonic() - self._began) * (planned - done) / done
            parts.append(f"{duration(left)} left")
        return ", ".join(parts)

    def _show(self, text: str) -> None:
        if self._tty:
            print_line_over(self._err, text, self._width)
            self._width = len(text)
        else:
            print_line(text, self._err)


def print_line_over(err: TextIO, text: str, width: int) -> None:
    """Write ``text`` over a line of ``width`` characters."""
    err.write(f"\r{text:<{width}}")
    err.flush()


def print_figures(document: Mapping[str, Any]) -> None:
    """The tables of a document."""
    policies = ", ".join(
        f"{name}{_number(policy['version'])} (engine {policy['engine']})"
        for name, policy in document["policies"].items()
    )
    samples = document["samples"]
    how = "greedy" if document["temperature"] == 0 else f"temperature {document['temperature']:g}"
    print_line(f"{document['model']}: {policies}")
    print_line(f"{samples} sample{'s' if samples > 1 else ''} a prompt, {how}")
    several = len(document["policies"]) > 1
    ks = [k for k in _ks(document) if k != "1"]
    header = ("set", *(("policy",) if several else ()), "prompts", f"avg@{samples}")
    header += (*(f"pass@{k}" for k in ks), "mean reward", "cut off", "failed")
    print_table(header, _rows(document, several, ks))
    print_line(
        f"[ ]: {document['confidence']:.0%} confidence intervals over prompts"
        f"; {duration(document['seconds'])}, {_tokens(document)} tokens sampled"
    )
    for line in _warnings(document):
        print_line(line)


def _number(version: int | None) -> str:
    return "" if version is None else f" version {version}"


def _ks(document: Mapping[str, Any]) -> list[str]:
    policies = [p for each in document["sets"].values() for p in each["policies"].values()]
    return list(policies[0]["pass"]) if policies else []


def _rows(document: Mapping[str, Any], several: bool, ks: Sequence[str]) -> Iterator[list[str]]:
    for name, figures in document["sets"].items():
        episodes = figures["episodes"]
        ends = [
            f"{episodes['cut_off'] / max(1, episodes['played']):.0%}",
            f"{episodes['failed']} of {episodes['played'] + episodes['failed']}",
        ]
        for policy, found in (figures["policies"] or {"–": None}).items():
            head = [name, *([policy] if several else []), str(figures["n"])]
            shown = [None] * (len(ks) + 2)
            if found is not None:
                shown = [found["avg"], *(found["pass"][k] for k in ks), found["mean_reward"]]
            yield [*head, *map(_interval, shown), *ends]


def _interval(estimate: Mapping[str, float | None] | None) -> str:
    if estimate is None:
        return "–"
    value, low, high = estimate["value"], estimate["low"], estimate["high"]
    return f"{value:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")


def _tokens(document: Mapping[str, Any]) -> str:
    return count(sum(each["episodes"]["tokens"] for each in document["sets"].values()))


def _warnings(document: Mapping[str, Any]) -> Iterator[str]:
    for name, figures in document["sets"].items():
        failed = figures["episodes"]["failed"]
        if failed:
            yield (
                f"{name}: {failed} episodes failed in every attempt and are not counted ({figures['failed']} "
                f"prompts have no other); the last: {_last_error(figures)}"
            )
    if document["error"]:
        yield f"partial: the evaluation ended early: {document['error']}"
    elif document["partial"]:
        yield "partial: it was interrupted; the metrics cover the finished episodes"


def _last_error(figures: Mapping[str, Any]) -> str:
    return str(figures["episodes"]["last_error"])


def print_comparison(document: Mapping[str, Any]) -> None:
    """The table of the differences to another model."""
    comparison = document["comparison"]
    print_line(f"\n{document['model']} less {comparison['model']}")
    for key, (mine, theirs) in comparison["unlike"].items():
        print_line(f"not alike: {key} {mine!r} and {theirs!r}")
    rows = [
        (name, policy, each["prompts"], _interval(found["avg"]), _verdict(found["avg"]))
        for name, each in comparison["sets"].items()
        for policy, found in each["policies"].items()
    ]
    print_table(("set", "policy", "prompts", "difference of avg", ""), rows)


def _verdict(estimate: Mapping[str, float | None]) -> str:
    low, high = estimate["low"], estimate["high"]
    if low is None or high is None:
        return "one prompt is not enough"
    if low <= 0 <= high:
        return "no difference is shown"
    return "better" if low > 0 else "worse"
