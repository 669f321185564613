"""Stand-ins for devices that a machine does not have; they need torch."""
