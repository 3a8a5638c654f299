"""What the container suite builds and runs."""
