"""What the journal of a run says, for the pages."""
