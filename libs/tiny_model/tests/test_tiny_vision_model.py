from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from astraflow_tiny_model.vision import write_tiny_vision_model


@pytest.mark.parametrize("keys", [{}, {"tie": False, "dtype": "BF16", "vision_layers": 3}])
def test_transformers_loads_every_weight_and_its_processor(tmp_path: Path, keys: Any) -> None:
    import torch
    import transformers
    from PIL import Image

    folder = write_tiny_vision_model(tmp_path, hidden=32, image_size=9, patch_size=3, **keys)
    model, report = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32
    )
    assert type(model).__name__ == "LlavaForConditionalGeneration"
    assert not any(report.values())
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(images=[Image.new("RGB", (20, 4), (255, 0, 0))], return_tensors="pt")
    assert pixels["pixel_values"].shape == (1, 3, 9, 9)
    assert pixels["pixel_values"][0, :, 4, 4].tolist() == [1.0, -1.0, -1.0]
    ids = torch.tensor([[3, *[27] * 9, 4]])
    with torch.no_grad():
        logits = model(input_ids=ids, **pixels).logits
    assert logits.shape == (1, 11, 28) and torch.isfinite(logits).all()


def test_the_placeholder_is_a_token_that_only_the_template_writes(tmp_path: Path) -> None:
    folder = write_tiny_vision_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    special = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    assert special == {"$", "@"}


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"image": "?"}, "is not one character of alphabet"),
        ({"image_size": 7}, "is not a multiple of patch_size=4"),
        ({"vision_layers": 1}, "expected an even number and at least 2"),
        ({"experts": 4}, "has no experts"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, keys: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        write_tiny_vision_model(tmp_path, **keys)
