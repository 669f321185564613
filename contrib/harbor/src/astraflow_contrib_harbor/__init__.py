"""Task folders in the format of Harbor: a prompt source that reads them, and an environment with a shell."""
