"""A workflow in which a teacher reads what the policy samples."""
