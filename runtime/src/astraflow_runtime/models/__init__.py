"""What a run means by its models: references, folders and the files in them."""
