"""Chat templates of public models, with what the gateway is to find out about each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from astraflow_testing.scripted_policies import PairsTokenizer

FOLDER = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class Template:
    """``style`` and ``native`` of its tool calls; ``reasons``: it keeps reasoning apart; ``end``: its end token."""

    file: str
    end: str
    style: str = "hermes"
    native: bool = True
    reasons: bool = False
    specials: tuple[str, ...] = ()

    @cache  # noqa: B019 - one for each template, for good
    def tokenizer(self) -> PairsTokenizer:
        source = (FOLDER / f"{self.file}.jinja").read_text(encoding="utf-8")
        return PairsTokenizer(source, self.end, self.specials)


CHATML = ("<|im_start|>",)
MISTRAL = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[AVAILABLE_TOOLS]", "[ARGS]")
LLAMA = ("<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>")
KIMI = (
    "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>",
)  # fmt: skip

TEMPLATES = (
    Template("Qwen-Qwen2.5-7B-Instruct", "<|im_end|>", specials=CHATML),
    Template("Qwen-Qwen3-0.6B", "<|im_end|>", reasons=True, specials=CHATML),
    Template("Qwen-QwQ-32B", "<|im_end|>", specials=CHATML),
    Template("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "<|im_end|>", specials=CHATML),
    Template("meta-llama-Llama-3.1-8B-Instruct", "<|eot_id|>", "llama", specials=LLAMA),
    Template("meta-llama-Llama-3.2-3B-Instruct", "<|eot_id|>", "llama", specials=LLAMA),
    Template("mistralai-Mistral-Nemo-Instruct-2407", "</s>", "mistral", specials=MISTRAL),
    Template("Mistral-Small-3.2-24B-Instruct-2506", "</s>", "mistral", specials=MISTRAL),
    Template("unsloth-mistral-Devstral-Small-2507", "</s>", "mistral", specials=MISTRAL),
    Template("google-gemma-2-2b-it", "<end_of_turn>", native=False, specials=("<start_of_turn>",)),
    Template("microsoft-Phi-3.5-mini-instruct", "<|end|>", native=False),
    Template("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "<｜end▁of▁sentence｜>", native=False),
    Template("ibm-granite-granite-3.3-2B-Instruct", "<|end_of_text|>", native=False),
    Template("moonshotai-Kimi-K2", "<|im_end|>", "kimi", specials=KIMI),
    Template("llama-cpp-rwkv-world", "<|rwkv_end|>", native=False),
)
