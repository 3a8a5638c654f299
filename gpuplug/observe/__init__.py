"""What is true now, and why, in words; every view of it comes from here."""
