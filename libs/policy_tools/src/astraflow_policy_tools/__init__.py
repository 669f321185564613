"""What data policies share: memory of prompts, seeded chance, numbers that change with the version."""
