"""A terminal on the other end of a pseudo-terminal: the rows that a person sees of what a process writes."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
from unicodedata import east_asian_width

_TOKENS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\r\n])|([^\x1b\r\n])")


class Terminal:
    """Shows what the child of ``argv`` writes; the child runs the commands of its stdin, one a line, and answers each
    on descriptor 3. Implements what rich uses: cursor up, erase line, clear, home, colours. Lines that are too long
    when it becomes narrower are broken (``reflow``) or cut, as terminals do the one or the other."""

    def __init__(
        self, argv: list[str], environment: dict[str, str], width: int, height: int, reflow: bool
    ) -> None:
        self.width, self.height, self._reflow = width, height, reflow
        self.rows: list[str] = [""]
        self.gone: list[str] = []
        self._row = self._column = 0
        self._master, slave = os.openpty()
        self._size()
        self._answers, answers = os.pipe()
        self._orders, orders = os.pipe()
        self._orders, orders = orders, self._orders
        self._child = subprocess.Popen(
            [*argv, str(orders), str(answers)],
            stdin=slave, stdout=slave, stderr=slave, pass_fds=(orders, answers), env=environment,
        )  # fmt: skip
        for each in (slave, answers, orders):
            os.close(each)

    def tell(self, order: str) -> None:
        """Send a command to the child; returns when it has run it, and all that it wrote is on the screen."""
        os.write(self._orders, f"{order}\n".encode())
        written, answered = b"", False
        while True:
            ready, _, _ = select.select(
                [self._master, self._answers], [], [], 0 if answered else 30
            )
            if self._master in ready:
                written += os.read(self._master, 1 << 16)
            elif self._answers in ready:
                assert os.read(self._answers, 1), f"the child has ended: {written!r}"
                answered = True
            else:
                assert answered, f"no answer to {order!r}: {written!r}"
                break
        self._write(written.decode())

    def resize(self, width: int, height: int) -> None:
        """Change the size, as a person who drags the window's corner."""
        rows: list[str] = []
        row = 0
        for index, line in enumerate(self.rows):
            if index == self._row:
                row = len(rows) + (min(self._column, len(line)) // width if self._reflow else 0)
            pieces = [line[at : at + width] for at in range(0, len(line), width)] or [""]
            rows += pieces if self._reflow else pieces[:1]
        self.rows, self._row, self._column = rows, row, min(self._column, width - 1)
        self.width, self.height = width, height
        self._scroll()
        self._size()

    def end(self) -> int:
        """Let the child end; its exit code."""
        os.close(self._orders)
        code = self._child.wait(30)
        for each in (self._master, self._answers):
            os.close(each)
        return code

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(row.rstrip() for row in self.rows)

    def _size(self) -> None:
        fcntl.ioctl(
            self._master, termios.TIOCSWINSZ, struct.pack("HHHH", self.height, self.width, 0, 0)
        )

    def _write(self, text: str) -> None:
        end = 0
        for token in _TOKENS.finditer(text):
            assert token.start() == end, f"not understood: {text[end : token.start() + 9]!r}"
            end = token.end()
            given, command, move, character = token.groups()
            if command:
                self._obey(given, command)
            elif move == "\r":
                self._column = 0
            elif move == "\n":
                self._row += 1
                self._scroll()
            else:
                self._put(character)

    def _obey(self, given: str, command: str) -> None:
        match command:
            case "A":
                self._row = max(0, self._row - int(given or 1))
            case "K":
                assert given == "2"
                self.rows[self._row] = ""
            case "H":
                self._row = self._column = 0
            case "J":
                assert given == "2"
                self.rows = [""] * len(self.rows)
            case "m" | "h" | "l":
                pass
            case _:
                raise AssertionError(f"unknown: {given}{command}")

    def _put(self, character: str) -> None:
        assert east_asian_width(character) not in "WF"
        if self._column >= self.width:
            self._row, self._column = self._row + 1, 0
            self._scroll()
        row = self.rows[self._row].ljust(self._column)
        self.rows[self._row] = row[: self._column] + character + row[self._column + 1 :]
        self._column += 1

    def _scroll(self) -> None:
        self.rows += [""] * (self._row + 1 - len(self.rows))
        over = max(0, len(self.rows) - self.height)
        # What lies below the cursor is given up first when the screen becomes lower.
        while over and self._row < len(self.rows) - 1:
            self.rows.pop()
            over -= 1
        self.gone += self.rows[:over]
        del self.rows[:over]
        self._row -= over
