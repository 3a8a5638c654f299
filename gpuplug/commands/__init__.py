"""What a person runs: one module per command."""
