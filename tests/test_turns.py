"""A test that takes turns is run where what it is about has changed, and by every third commit otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import turns
from turns import Subject

NOW = {f"test_{name}": Subject(f"test_{name}", "a") for name in "uvwxyz"}
RECORDED = dict.fromkeys(NOW, "a")


def test_each_test_has_one_turn_of_three() -> None:
    shares = [NOW.keys() - turns.not_due(NOW, RECORDED, share) for share in range(3)]
    assert [len(share) for share in shares] == [2, 2, 2]
    assert set().union(*shares) == NOW.keys()


def test_what_has_changed_or_was_never_recorded_is_due() -> None:
    recorded = {**RECORDED, "test_v": "b"}
    del recorded["test_w"]
    for share in range(3):
        assert not {"test_v", "test_w"} & turns.not_due(NOW, recorded, share)


def test_tests_of_one_unit_run_together() -> None:
    now = {**NOW, **{f"test_{n}": Subject("ranks", "a") for n in range(5)}}
    recorded = dict.fromkeys(now, "a")
    ranks = {f"test_{n}" for n in range(5)}
    assert [len(ranks & turns.not_due(now, recorded, share)) for share in range(3)].count(0) == 1
    assert not any(ranks & turns.not_due(now, {**recorded, "test_3": "b"}, n) for n in range(3))


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(turns, "ROOT", tmp_path)
    monkeypatch.setattr(turns, "RECORD", tmp_path / "turns.json")
    turns.digest_of.cache_clear()
    for name in ("a.py", "sub/b.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    return tmp_path


@pytest.mark.parametrize(
    ("changed", "same"),
    [("a.py", False), ("sub/b.py", False), ("sub/c.py", False), ("d.txt", True)],
)
def test_a_digest_is_of_the_files_of_a_test(tree: Path, changed: str, same: bool) -> None:
    before = turns.digest_of("a.py", "sub/*.py")
    (tree / changed).write_text("2")
    turns.digest_of.cache_clear()
    assert (turns.digest_of("a.py", "sub/*.py") == before) is same
    with pytest.raises(pytest.UsageError, match=r"'other/\*'"):
        turns.digest_of("other/*")
    turns.digest_of.cache_clear()


def test_words_about_code_do_not_count() -> None:
    plain = turns.content("def f():\n    return 1\n", ".py")
    told = '"""A module."""\n\ndef f():\n    """Of 1."""\n    return 1  # the number\n'
    assert turns.content(told, ".py") == plain != turns.content("def f():\n    return 2", ".py")
    assert turns.content("a # b", ".toml") != turns.content("a", ".toml")


def test_what_a_suite_skips_is_recorded_with_what_passed() -> None:
    ended = {
        "passed": ("passed", Subject("suite", "a")),
        "not declared": ("skipped", Subject("suite", "a")),
        "broken": ("failed", Subject("suite", "a")),
        "nothing installed": ("skipped", Subject("programs", "b")),
    }
    assert turns.passed(ended) == {"passed": "a", "not declared": "a"}


def test_the_record_has_tests_that_are_there(tree: Path) -> None:
    turns.write({"a.py::test_one": "1", "gone.py::test_two": "2"})
    turns.write({"sub/b.py::test_three": "3"})
    assert turns.read() == {"a.py::test_one": "1", "sub/b.py::test_three": "3"}
    assert json.loads(turns.RECORD.read_text()) == turns.read()
