"""What a process does and knows on its host: parent, clock, memory, private files."""
