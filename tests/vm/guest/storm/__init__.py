"""Weather that passes over a machine of its own: GPUs that flap, and that are torn out without asking."""
