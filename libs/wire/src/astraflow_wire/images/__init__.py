"""Images in prompts: messages, files, the models that read them, and their way through frames."""
