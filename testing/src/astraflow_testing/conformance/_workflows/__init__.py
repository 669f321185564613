"""What the workflow and reward suites are made of: looks at episodes, and completions to judge."""
