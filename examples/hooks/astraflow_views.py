from astraflow_core import hookimpl


@hookimpl
def astraflow_views(trajectory):
    if trajectory["workflow"].get("use") != "mine":
        return []
    said = [turn["text"] for turn in trajectory["turns"] if turn["role"] == "assistant"]
    return [
        {
            "kind": "table",
            "title": "Moves",
            "columns": ["turn", "move"],
            "rows": [[number, text[-40:]] for number, text in enumerate(said)],
        }
    ]
