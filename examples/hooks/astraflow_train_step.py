import time

from astraflow_core import hookimpl


@hookimpl(wrapper=True)
def astraflow_train_step(step):
    began = time.monotonic()
    metrics = yield
    return {**metrics, "wrapped_s": time.monotonic() - began}
