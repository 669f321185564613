"""``python -m astraflow_contrib_pypi_models.convert FILE.gguf FOLDER``: a GGUF file of the Llama family as
a Hugging Face folder in bfloat16."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

_NOT_OF_THE_MODEL = (
    "quantization_config", "dtype", "torch_dtype", "architectures", "transformers_version", "model_type",
)  # fmt: skip


def main(source: str, target: str) -> None:
    """Convert; raises if a weight is missing or the tokenizer has no chat template."""
    file = Path(source)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if not tokenizer.chat_template:
        raise ValueError(f"{file} has no chat template")
    loaded = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    if not isinstance(loaded, LlamaForCausalLM):
        raise TypeError(f"{file} holds a {type(loaded).__name__}, expected a LlamaForCausalLM")
    # What was loaded counts as quantized and refuses to be saved; a fresh model of its weights does not.
    config = {k: v for k, v in loaded.config.to_dict().items() if k not in _NOT_OF_THE_MODEL}
    model = LlamaForCausalLM(LlamaConfig(**config)).to(torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
