"""Episodes: what a workflow is given, how a task is rolled out, and the dry call before a run."""
