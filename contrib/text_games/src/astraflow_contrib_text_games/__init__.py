"""Two games of few turns in text, and their levels."""
