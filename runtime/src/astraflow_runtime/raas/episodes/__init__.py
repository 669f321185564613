"""Episodes: the engines that a workflow gets, the rollout of a task, and the dry call before a run."""
