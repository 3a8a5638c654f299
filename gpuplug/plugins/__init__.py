"""Driver packages: the hooks that they implement, and how they are loaded."""
