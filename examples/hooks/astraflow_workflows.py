from astraflow_core import Component, hookimpl


@hookimpl
def astraflow_workflows():
    return [Component("debate", "my_workflow.debate:Debate", "two policies argue")]
