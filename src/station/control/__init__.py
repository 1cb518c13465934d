"""Decides and records: names, states and lifecycle of sandboxes. It touches no box and carries no command or file."""
