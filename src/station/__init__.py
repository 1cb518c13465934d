"""A Linux sandbox for an agent, by name, on your own machines."""

__version__ = "0.1.0"
