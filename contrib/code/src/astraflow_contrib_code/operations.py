"""Operations on lists of integers, of which tasks are combined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

Numbers = list[int]


@dataclass(frozen=True, slots=True)
class Operation:
    """``words`` describe what ``apply`` does; ``code`` is Python that does it to ``numbers``, written on its own."""

    words: str
    apply: Callable[[Numbers], Numbers]
    code: str


def operations() -> tuple[Operation, ...]:
    """All of them, always in the same order."""
    return (*_of_elements(), *_of_choice(), *_of_order())


def _of_elements() -> Iterator[Operation]:
    for k in range(2, 8):
        yield Operation(
            f"add {k} to each number",
            lambda numbers, k=k: [n + k for n in numbers],  # type: ignore[misc]
            f"numbers = list(map(lambda n: n + {k}, numbers))",
        )
        yield Operation(
            f"multiply each number by {k}",
            lambda numbers, k=k: [n * k for n in numbers],  # type: ignore[misc]
            f"numbers = [{k} * n for n in numbers]",
        )
    yield Operation(
        "replace each number by its square",
        lambda numbers: [n * n for n in numbers],
        "numbers = [n ** 2 for n in numbers]",
    )
    yield Operation(
        "replace each number by its absolute value",
        lambda numbers: [abs(n) for n in numbers],
        "numbers = [n if n >= 0 else -n for n in numbers]",
    )
    yield Operation(
        "replace each number by the sum of all numbers up to and including it",
        lambda numbers: [sum(numbers[: at + 1]) for at in range(len(numbers))],
        "from itertools import accumulate\nnumbers = list(accumulate(numbers))",
    )


def _of_choice() -> Iterator[Operation]:
    for k in (-3, 0, 2, 5):
        yield Operation(
            f"keep only the numbers greater than {k}",
            lambda numbers, k=k: [n for n in numbers if n > k],  # type: ignore[misc]
            f"numbers = list(filter(lambda n: n > {k}, numbers))",
        )
    for k in (2, 3):
        yield Operation(
            f"keep only the numbers divisible by {k}",
            lambda numbers, k=k: [n for n in numbers if n % k == 0],  # type: ignore[misc]
            f"numbers = [n for n in numbers if not n % {k}]",
        )
        yield Operation(
            f"keep only the first {k} numbers",
            lambda numbers, k=k: [n for at, n in enumerate(numbers) if at < k],  # type: ignore[misc]
            f"numbers = numbers[:{k}]",
        )
    yield Operation(
        "keep only every second number, beginning with the first",
        lambda numbers: [n for at, n in enumerate(numbers) if at % 2 == 0],
        "numbers = numbers[::2]",
    )


def _of_order() -> Iterator[Operation]:
    yield Operation(
        "reverse the order of the numbers",
        lambda numbers: list(reversed(numbers)),
        "numbers = numbers[::-1]",
    )
    yield Operation(
        "sort the numbers from small to large", lambda numbers: sorted(numbers), "numbers.sort()"
    )
    yield Operation(
        "sort the numbers from large to small",
        lambda numbers: sorted(numbers)[::-1],
        "numbers.sort(reverse=True)",
    )
    yield Operation(
        "remove each number that has come before",
        lambda numbers: [n for at, n in enumerate(numbers) if n not in numbers[:at]],
        "numbers = list(dict.fromkeys(numbers))",
    )
    yield Operation(
        "move the first number to the end, if there is one",
        lambda numbers: numbers[1:] + numbers[:1],
        "if numbers: numbers.append(numbers.pop(0))",
    )
