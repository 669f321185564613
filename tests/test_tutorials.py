"""Each tutorial, followed from top to bottom in a fresh folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import tutorial
from workspace import ROOT

from astraflow_testing.runs import User

PAGES = sorted((ROOT / "docs").glob("tutorial-*.md"))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=pytest.mark.turns(f"docs/{page.name}", "tests/tutorial.py"),
            id=page.stem.removeprefix("tutorial-"),
        )
        for page in PAGES
    ],
)
def test_a_reader_gets_what_the_tutorial_shows(page: Path, user: User) -> None:
    folder = user.directory / "new"
    folder.mkdir()
    tutorial.follow(page, folder, user.environment, deadline_s=360)
    assert user.left_running() == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem.removeprefix("tutorial-"))
def test_a_tutorial_has_numbered_steps_and_says_what_to_read_next(page: Path) -> None:
    headings = [line[3:] for line in page.read_text("utf-8").splitlines() if line[:3] == "## "]
    *numbered, last = headings
    assert last == "Read next"
    assert [heading.split(".")[0] for heading in numbered] == [
        str(n + 1) for n in range(len(numbered))
    ]
    kinds = [step.kind for step in tutorial.steps(page.read_text("utf-8"))]
    assert {"output"} < set(kinds) and ("sh" in kinds or "python" in kinds)


PAGE = """
Download [`data.txt`](there/data.txt) into the folder.

1. Save this as `sub/x.txt`:

   ```toml
   a = 1
   ```

```sh
cat data.txt sub/x.txt
other=kept
```

```text
hel…
…
a = 7
```

This ends with exit code 3:

```sh
echo $other
(exit 3)
```

```text
kept
```

```python
twice = 2
```

```python
twice * 21
```

```text
0
```
"""


def test_what_a_page_shows_is_what_was_printed(tmp_path: Path, user: User) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "data.txt").write_text("hello\nthere\n")
    page = tmp_path / "page.md"
    for number, (old, new, told) in enumerate(
        [
            ("", "", ""),
            ("hel…", "help", "shows\n  help\nbut"),
            ("code 3", "code 0", "exit code 3 of"),
            ("kept\n```\n\n```p", "lost\n```\n\n```p", "shows\n  lost"),
            ("twice * 21", "thrice", "NameError"),
        ]
    ):
        page.write_text(PAGE.replace(old, new))
        folder = tmp_path / str(number)
        folder.mkdir()
        if not told:
            tutorial.follow(page, folder, user.environment, 30)
            continue
        with pytest.raises(AssertionError, match=told):
            tutorial.follow(page, folder, user.environment, 30)


def test_lines_are_in_the_order_of_the_page() -> None:
    assert tutorial.missing("a 1\n…\nb", "x\na  -2.5e-3\ny\nb\n") is None
    assert tutorial.missing("pid …, port 1, …", "pid 2, port 30, 4.5") is None
    assert tutorial.missing("b\na 1", "a 2\nb") == "a 1"
    with pytest.raises(ValueError, match="say what to do"):
        list(tutorial.steps("Text:\n\n```json\n{}\n```\n"))
