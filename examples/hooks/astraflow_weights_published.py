from astraflow_core import hookimpl


@hookimpl
def astraflow_weights_published(run, policy, version):
    (run.directory / f"newest-{policy}.txt").write_text(str(version))
