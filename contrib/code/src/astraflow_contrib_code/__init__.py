"""Programs as answers: a reward that runs tests in a sandbox, and prompts that ask for programs."""
