"""Parts of the workflow and reward suites: checks of episodes, and completions to score."""
