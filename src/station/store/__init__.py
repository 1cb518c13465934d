"""Where facts live: one registry port, and its bodies."""
