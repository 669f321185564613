"""Whether evaluation sets are held out."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import ANY

from launch_support import Table, parsed

from astraflow_runtime.launch.results import held_out
from astraflow_wire.status import SetOverlap


def test_what_is_not_held_out_is_reported(table: Table, tmp_path: Path) -> None:
    """Of the same file by another name, of the same source, and of prompts that the dataflow met in training."""
    data, link, other = (tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    data.write_text("1")
    other.write_text("1")
    link.symlink_to(data)
    table["prompts"] = {"use": "merged", "sources": {"one": {"use": "jsonl", "path": str(data)}}}
    table["eval"] = {}
    table["eval"]["sets"] = {
        "linked": {"use": "jsonl", "path": str(link)},
        "other": {"use": "jsonl", "path": str(other)},
        "same": table["prompts"],
    }
    config = parsed(table)
    origins = held_out.shared_origins(config)
    assert origins == dict.fromkeys(("linked", "same"), ANY)
    assert origins["linked"] == f"it reads {link}, which is used for training"
    met = {"linked": SetOverlap(prompts=3), "other": SetOverlap(prompts=9, trained_on=2)}
    described = held_out.described(config, met)
    assert held_out.verdict(described) == (
        f"0 of 3 prompts of 'linked' were also rolled out for training (it reads {link}, which is used for training); "
        "2 of 9 prompts of 'other' were also rolled out for training"
    )
    assert held_out.verdict({"other": {**described["other"], "trained_on": 0}}) == ""
    table["prompts"] = table["eval"]["sets"]["same"] = {"use": "digits", "size": 4}
    assert held_out.shared_origins(parsed(table)) == {
        "same": "it is the prompt source 'digits' with the keys of [prompts]"
    }


def test_another_split_of_the_same_file_is_held_out(table: Table, tmp_path: Path) -> None:
    data = tmp_path / "a.jsonl"
    data.write_text("1")
    part = {"use": "split", "source": {"use": "jsonl", "path": str(data)}}
    table["prompts"] = {**part, "split": "train"}
    table["eval"] = {"sets": {name: {**part, "split": name} for name in ("held_out", "train")}}
    assert list(held_out.shared_origins(parsed(table))) == ["train"]
