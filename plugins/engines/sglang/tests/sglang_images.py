"""Why the engine brings a class of its own for models that read images with SGLang 0.5.23, and what that depends on: where the
sources in its wheel show it; see ``sglang_behaviours``."""

from __future__ import annotations

from sglang_behaviours import BATCH, IO, TOKENIZER, Cite, cite

LLAVA = "srt/models/llava.py"
PROCESSORS = "srt/multimodal/processors"

REASONS: dict[str, tuple[str, tuple[Cite, ...]]] = {
    "files_stand_beside_token_ids": (
        "so there is a protocol for them: an image is a file, an address or base64 text",
        (cite(IO, 185, 200, "input_ids", "image_data", "base64"),),
    ),
    "weights_are_refused_at_the_strategy_of_llava": (
        "`default`, which LLaVA 1.5 has; the features of an image know it, the loading of weights does not",
        (
            cite(LLAVA, 826, 833, '"default"', "Unexpected select feature"),
            cite(LLAVA, 862, 880, '"patch"', '"full"', '"cls_patch"', "raise ValueError"),
        ),
    ),
    "a_tower_is_looked_for_by_the_name_of_its_class": (
        "that transformers has for its configuration, in the registry of SGLang's own classes",
        (cite(LLAVA, 661, 689, "auto_model_type", "resolve_model_cls", "raise ValueError"), cite(LLAVA, 782, 782, "AutoModel")),
    ),
    "pixels_are_halved": (
        "before they reach the model: they are sent as float16, and of several images only the first is read",
        (
            cite(f"{PROCESSORS}/llava.py", 98, 102, "float16"),
            cite(f"{PROCESSORS}/llava.py", 240, 261, '"multi-images"', "image_data[0]"),
        ),
    ),
    "models_of_transformers_get_text": (
        "their processor expands the placeholders of a text itself",
        (cite(f"{PROCESSORS}/transformers_auto.py", 214, 224, "text=input_text", '["input_ids"]'),),
    ),
    "there_are_no_kernels_for_cpus": (
        "whose wrappers the wheel sglang-kernel 0.4.10 has, and none of its libraries",
        (cite("kernels/ops/kvcache/cache_move.py", 5, 10, "is_cpu", "sgl_kernel", "copy_all_layer_kv_cache_cpu"),),
    ),
    "classes_from_elsewhere_come_first": (
        "that of a model by its name, before SGLang's own are imported; that of a processor in the place of its own",
        (
            cite("srt/models/registry.py", 102, 104, "self.models.get(first_arch)"),
            cite("srt/models/registry.py", 154, 157, "SGLANG_EXTERNAL_MODEL_PACKAGE", "models.update"),
            cite(TOKENIZER, 614, 615, "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE", "overwrite=True"),
            cite("srt/managers/multimodal_processor.py", 36, 41, "overwrite", "arch.__name__"),
        ),
    ),
    "what_a_tower_made_is_kept_by_the_image": (
        "whatever weights it had, so our class clears that as it loads",
        (cite("srt/managers/mm_schedule.py", 469, 469, "embedding_cache.get_single(item.hash)"),),
    ),
    "places_of_images_are_scored_as_the_last_id": (
        "an id made of the image is cut to the vocabulary, so the log-prob of the placeholder is asked for beside",
        (
            cite(BATCH, 3052, 3054, "multimodal hashes", "clamp_"),
            cite(IO, 237, 237, "token_ids_logprob"),
        ),
    ),
}  # fmt: skip
"""Name → what it is, and where that is shown."""

TOWERS = ("CLIPVisionModel", "SiglipVisionModel")
"""Classes of transformers for the vision towers of the models that read images here."""
