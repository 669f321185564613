"""What a run came to: its metrics, curves, report and summary."""
