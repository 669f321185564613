from astraflow_core import Component, hookimpl


@hookimpl
def astraflow_transports():
    return [Component("pigeon", "my_transport.transport:Pigeon", "versions by post")]
