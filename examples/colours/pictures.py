"""Makes ``pictures.jsonl`` and ``held_out.jsonl``, prompts with the picture of a shade of red, green or blue:
``python pictures.py``."""

from __future__ import annotations

import base64
import io
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

COLOURS = "rgb"


def prompts(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """``count`` prompts, the same for the same seed: the channel of the answer is brighter than the others."""
    drawn = random.Random(seed)
    for number in range(count):
        answer = number % len(COLOURS)
        shade = [drawn.randrange(0, 100) for _ in COLOURS]
        shade[answer] = drawn.randrange(156, 256)
        file = io.BytesIO()
        size = drawn.randrange(4, 16), drawn.randrange(4, 16)
        Image.new("RGB", size, tuple(shade)).save(file, "PNG", optimize=True)
        url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
        content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "="}]
        yield {
            "id": f"{seed}-{number}",
            "prompt": [{"role": "user", "content": content}],
            "answer": COLOURS[answer],
        }


if __name__ == "__main__":
    for name, count, seed in (("pictures.jsonl", 96, 0), ("held_out.jsonl", 30, 1)):
        lines = [json.dumps(prompt) + "\n" for prompt in prompts(count, seed)]
        Path(__file__).with_name(name).write_text("".join(lines), encoding="utf-8")
