"""What the suite of trackers shares."""
