"""The answers of ``astraflow lineage`` for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from astraflow_contrib_replay_run.lineage.reports import counted

_SHOWN_GROUPS = 20
_METRICS = ("loss", "kl", "approx_kl", "grad_norm", "lr", "clip_fraction", "entropy")


def told_step(step: Mapping[str, Any]) -> Iterator[str]:
    """What made an update."""
    groups: Sequence[Mapping[str, Any]] = step["groups"]
    rows = [row for group in groups for row in group["rows"]]
    yield (
        f"update {step['step']} of {step['policy']}: batch {step['batch']}, served at {step['served_s']:.2f} s, "
        f"updates version {step['updates_version']}"
    )
    yield f"  {_made(step)}"
    shown = [f"{name} {step['metrics'][name]:.6g}" for name in _METRICS if name in step["metrics"]]
    if shown:
        yield f"  {', '.join(shown)}"
    raas = counted(group["raas"] for group in groups)
    yield (
        f"  {len(rows)} rows of {len(groups)} groups and {len({g['prompt'] for g in groups})} prompts, "
        f"{sum(row['trained_tokens'] for row in rows)} trained tokens, from {_counts(raas)} (groups)"
    )
    yield f"  tokens by version: {_by_version(rows)}"
    yield f"  rows by staleness: {_counts(counted(row.get('staleness', 'borrowed') for row in rows))}"
    for swap in step["data_policy_swaps"]:
        yield f"  data policy {swap['name']!r} of {swap['place']} was swapped at {swap['at_s']:.2f} s"
    for place, provider in step["plugins"].items():
        yield f"  {place}: {provider}"
    for group in groups[:_SHOWN_GROUPS]:
        yield from told_group(group)
    if len(groups) > _SHOWN_GROUPS:
        yield f"  and {len(groups) - _SHOWN_GROUPS} more groups; --json has all"


def told_group(group: Mapping[str, Any]) -> Iterator[str]:
    """A group, and its rows if it has some here."""
    where = f"{group['raas']} ({group['host']})" if group["host"] else group["raas"]
    yield (
        f"  group {group['group']}, prompt {group['prompt']}: {where}, pushed at {group['pushed_s']:.2f} s"
    )
    for verdict in group["verdicts"]:
        if verdict["reason"]:
            by = verdict["by"] or "the dataflow"
            yield f"    {verdict['policy']}: rejected by {by}: {verdict['reason']}"
        else:
            yield f"    {verdict['policy']}: {verdict['kept']} rows kept"
        for shadow, reason in verdict["shadow_rejections"]:
            yield f"    shadow {shadow} would have rejected it: {reason}"
    rows = group.get("rows", [])
    if rows:
        rewards = ", ".join(f"{row['reward']:g}" for row in rows)
        yield f"    rows {_ranges(rows)}: rewards {rewards}; tokens by version: {_by_version(rows)}"


def told_version(version: Mapping[str, Any]) -> Iterator[str]:
    """What made a version, and what it made."""
    yield (
        f"version {version['version']} of {version['policy']}: announced at {version['announced_s']:.2f} s after "
        f"{version['updates']} updates, {version['bytes'] / 1e6:.1f} MB, digest {version['digest']}"
    )
    for step in version["made_by"]:
        yield from told_step(step)
    if not version["made_by"]:
        yield "  no update: the weights that the trainer began or continued with"
    yield f"it sampled {version['sampled_rows']} rows first"
    yield from told_uses(version["trained_in"])


def told_uses(uses: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Which updates rows went into."""
    for use in uses:
        yield (
            f"  update {use['step']} of {use['policy']}: {len(use['rows'])} rows, "
            f"{use['share_of_trained_tokens']:.2%} of its trained tokens; {_made(use)}"
        )
    if not uses:
        yield "  no update was made with them"


def told_row(row: Mapping[str, Any]) -> Iterator[str]:
    """A separate row."""
    versions = row["versions"]
    tokens = (
        ", ".join(f"{count} by {version}" for version, count in versions)
        if versions is not None
        else f"no longer in the journal; the oldest is {row['min_version']}"
    )
    yield (
        f"row {row['row']}: sequence {row['sequence']} of its group, reward {row['reward']:g}, {row['tokens']} tokens, "
        f"{row['trained_tokens']} of them trained"
    )
    yield f"  sampled tokens in order, by version: {tokens}"


def _made(update: Mapping[str, Any]) -> str:
    if update["made_s"] is None:
        return "not made"
    published = update["published_version"]
    to = (
        f"published as version {published}" if published is not None else "not published separately"
    )
    return f"made at {update['made_s']:.2f} s, {to}"


def _by_version(rows: Sequence[Mapping[str, Any]]) -> str:
    tokens: dict[int, int] = {}
    for row in rows:
        for version, count in row["versions"] or ():
            tokens[version] = tokens.get(version, 0) + count
    lost = sum(row["versions"] is None for row in rows)
    told = ", ".join(f"{count} by {version}" for version, count in sorted(tokens.items()))
    if lost:
        told = f"{told}; {lost} rows are no longer in the journal" if told else "no longer known"
    return told or "none"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


def _ranges(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [row["row"] for row in rows]
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
