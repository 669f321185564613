"""What a pool decides, without network and clock."""
