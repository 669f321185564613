"""What a person sees of a run while it continues."""
