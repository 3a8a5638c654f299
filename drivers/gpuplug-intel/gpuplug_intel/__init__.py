"""Intel GPUs for gpuplug: one driver module per kernel driver."""
