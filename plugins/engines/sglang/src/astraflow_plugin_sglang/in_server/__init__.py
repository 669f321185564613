"""What runs in the processes of an SGLang server, whose interpreter has nothing of ours: this folder is on its path."""
