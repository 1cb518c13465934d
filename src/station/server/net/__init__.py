"""Where a station listens, and what is bounded before anybody is known."""
