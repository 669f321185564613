from astraflow_core import hookimpl


@hookimpl
def astraflow_run_ended(run, error):
    if error is not None:
        with (run.directory / "errors.txt").open("a") as file:
            print(f"{type(error).__name__}: {error}", file=file)
