from astraflow_core import Component, hookimpl


@hookimpl
def astraflow_engines():
    return [
        Component(
            name="fast",
            target="my_engine.engine:Fast",
            summary="samples fast",
            config="my_engine.config:FastConfig",
            capabilities=frozenset({"pause.keep"}),
        )
    ]
