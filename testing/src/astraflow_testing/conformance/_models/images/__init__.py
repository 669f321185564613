"""What engines and trainers promise that read images."""
