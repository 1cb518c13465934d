"""What things are: pure data and pure functions. No I/O; `now` is always an argument."""
