from astraflow_core import Component, hookimpl


@hookimpl
def astraflow_prompt_sources():
    return [Component("lines", "my_lines.source:Lines", "one a line", "my_lines.source:Config")]
