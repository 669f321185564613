"""The processes of a run: started, watched, restarted and ended."""
