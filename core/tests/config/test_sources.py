"""Files, base files and overrides become one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow_core.config.sources import Layers, Origin, apply_overrides, parse_value, read_file
from astraflow_core.errors import ConfigError

FILE = Origin("file", Path())


def layers(table: dict[str, Any]) -> Layers:
    made = Layers()
    made.add(table, FILE)
    return made


def test_base_files_are_merged_key_by_key(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.toml").write_text("x = [1, 2]\n[t]\na = 1\nb = 1\n[t.u]\nc = 1\n")
    (tmp_path / "sub" / "b.toml").write_text('extends = "../a.toml"\n[t]\nb = 2\n')
    (tmp_path / "c.toml").write_text('extends = "sub/b.toml"\nx = [3]\n[t.u]\nd = 3\n')
    merged = read_file(tmp_path / "c.toml")
    assert merged.raw == {"x": [3], "t": {"a": 1, "b": 2, "u": {"c": 1, "d": 3}}}
    names = {path: Path(origin.label).name for path, origin in merged.origins.items()}
    assert names == {
        "x": "c.toml",
        "t.a": "a.toml",
        "t.b": "b.toml",
        "t.u.c": "a.toml",
        "t.u.d": "c.toml",
    }


def test_what_a_table_takes_over_that_names_its_component_again(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[t]\nuse = 'x'\na = 1\nb.c = 1\n[u]\nuse = 'x'\na = 1\n")
    (tmp_path / "b.toml").write_text("extends = 'a.toml'\n[t]\nuse = 'x'\nd = 2\n[u]\nb = 2\n")
    (tmp_path / "c.toml").write_text("extends = 'a.toml'\n[t]\nuse = 'y'\nd = 2\n")
    again = read_file(tmp_path / "b.toml")
    assert again.taken_over("t") == dict.fromkeys(["a", "b.c"], str(tmp_path / "a.toml"))
    assert again.taken_over("u") == {}  # it says only what is to change
    assert apply_overrides(again, ["t.a=3"]) == []
    assert list(again.taken_over("t")) == ["b.c"]
    assert read_file(tmp_path / "c.toml").taken_over("t") == {}


def test_what_goes_with_a_component_that_is_replaced_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[t]\nuse = 'x'\na = 1\nb.c = 1\n[u]\nuse = 'x'\na = 1\n")
    (tmp_path / "b.toml").write_text("extends = 'a.toml'\n[u]\nuse = 'y'\n")
    layers = read_file(tmp_path / "b.toml")
    assert apply_overrides(layers, ["t.use=y", "t.a=2", "u.use=y", "u.b=2"]) == []
    assert layers.raw == {"t": {"use": "y", "a": 2}, "u": {"use": "y", "b": 2}}
    assert layers.notes == [
        "t: 'x' was replaced by --set, together with its a, b"
    ]  # a file shows its keys


def test_what_belongs_to_the_core_stays_with_another_component(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        "prompts = { use = 'x', shuffle = false, path = 'p' }\nengines.judge = { use = 'x', model = 'm', slots = 2 }\n"
        "[policies.p]\nengine = { use = 'x', replicas = 2, python = 'env:x' }\ntrainer = { use = 'x', ranks = 2, lr = 1 }\n"
    )
    layers = read_file(tmp_path / "a.toml")
    tables = ("prompts", "engines.judge", "policies.p.engine", "policies.p.trainer")
    assert apply_overrides(layers, [f"{table}.use=y" for table in tables]) == []
    assert layers.raw == {
        "prompts": {"use": "y", "shuffle": False},
        "engines": {"judge": {"use": "y", "model": "m"}},
        "policies": {
            "p": {"engine": {"use": "y", "replicas": 2}, "trainer": {"use": "y", "ranks": 2}}
        },
    }
    assert {note.split(":")[0]: note.rpartition(" ")[2] for note in layers.notes} == dict(
        zip(tables, ("path", "slots", "python", "lr"), strict=True)
    )


def test_files_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n')
    with pytest.raises(ConfigError, match=r"cycle: .*a\.toml → .*b\.toml → .*a\.toml"):
        read_file(tmp_path / "a.toml")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[run]\nsteps = \n", "line 2, column 9"),
        (b"[run]\nsteps = 1\nsteps = 2\n", "line 3"),
        (b"[run\n", "line 1"),
        (b'a = "open', ":1:"),
        (b"a = \xff", "not UTF-8"),
        (b"extends = 3\n", "extends: must be the path of a file; received 3"),
    ],
)
def test_files_that_cannot_be_read_name_the_place(
    tmp_path: Path, content: bytes, words: str
) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_file(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


def test_a_missing_file_suggests_its_neighbour(tmp_path: Path) -> None:
    (tmp_path / "quickstart.toml").touch()
    with pytest.raises(ConfigError, match=r"no such file; did you mean 'quickstart\.toml'"):
        read_file(tmp_path / "quikstart.toml")
    with pytest.raises(ConfigError, match="is a folder; name the TOML file"):
        read_file(tmp_path)
    with pytest.raises(ConfigError, match="no such file; looked in "):
        read_file(tmp_path / "xyzzy.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("3e-6", 3e-6),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        ("{ use = 'x' }", {"use": "x"}),
        ("plain text", "plain text"),
        ("pypi:name", "pypi:name"),
        ("", ""),
        ("2024-01-01", "2024-01-01"),
        ("1\nother = 2", "1\nother = 2"),
        ("a # b", "a # b"),
    ],
)
def test_values_of_overrides(text: str, value: Any) -> None:
    assert parse_value(text) == value


def test_overrides_reach_tables_lists_and_new_keys() -> None:
    merged = layers({"run": {"steps": 1}, "data": [{"use": "a"}, {"use": "b", "ratio": 1}]})
    assert apply_overrides(merged, ["run.steps=2", "data.1.ratio=0.5", "new.table.key=x=y"]) == []
    assert merged.raw == {
        "run": {"steps": 2},
        "data": [{"use": "a"}, {"use": "b", "ratio": 0.5}],
        "new": {"table": {"key": "x=y"}},
    }
    assert merged.origins["data.1.ratio"].label == "--set"
    assert merged.origins["data.0.use"].label == "file"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.2.use=x", "data is a list of 1; '2' is not a valid index"),
        ("data.x=1", "'x' is not a valid index"),
        ("run.steps.x=1", "run.steps is 1, not a table"),
        ("=1", "expected KEY=VALUE"),
        ("run..x=1", "expected KEY=VALUE"),
        ("extends=a.toml", "only allowed in a file"),
    ],
)
def test_wrong_overrides(override: str, words: str) -> None:
    merged = layers({"run": {"steps": 1}, "data": [{"use": "a"}]})
    (problem,) = apply_overrides(merged, [override])
    assert override in problem
    assert words in problem


def test_naming_another_component_drops_the_keys_of_the_one_before() -> None:
    merged = layers(
        {"loss": {"use": "a", "clip": 1}, "prompts": {"use": "f", "path": "p", "data": []}}
    )
    merged.add({"loss": {"use": "b"}}, Origin("child", Path()))
    assert merged.raw["loss"] == {"use": "b"}
    merged.add({"loss": {"use": "b", "beta": 2}}, Origin("grandchild", Path()))
    assert merged.raw["loss"] == {"use": "b", "beta": 2}
    overrides = ["loss.gamma=3", "loss.use=c", "prompts.use=g"]
    assert apply_overrides(merged, overrides) == []
    assert merged.raw == {"loss": {"use": "c", "gamma": 3}, "prompts": {"use": "g", "data": []}}
    assert "loss.beta" not in merged.origins
