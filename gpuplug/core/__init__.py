"""Decisions, all pure: values in, values out, no effect anywhere."""
