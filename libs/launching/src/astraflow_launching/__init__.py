"""What launchers share: resource keys, placement, and the agent that starts processes on other hosts."""
