"""What ``model.generate`` of transformers does with requests of different lengths: one padded batch, which decodes
until the longest of them has its tokens. Plain sampling at temperature 1, without log-probs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from astraflow_core.types import GenerateRequest


class PaddedGenerate:
    """The model of ``folder`` in float32 on ``device``, with one thread."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
        self._model = model.to(device).eval()
        self._model.generation_config = GenerationConfig(do_sample=True, pad_token_id=0)

    def __call__(self, requests: Sequence[GenerateRequest]) -> None:
        """Sample what ``requests`` ask for, and more where others are longer."""
        longest = max(len(request.prompt) for request in requests)
        ids = torch.zeros(len(requests), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(requests):
            count = len(request.prompt)
            ids[row, longest - count :] = torch.from_numpy(request.prompt.astype("int64"))
            mask[row, longest - count :] = 1
        most = max(request.sampling.max_tokens for request in requests)
        ids, mask = ids.to(self._model.device), mask.to(self._model.device)
        with torch.inference_mode():
            found = self._model.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=most, top_k=0
            )
        assert found.shape == (len(requests), longest + most)
