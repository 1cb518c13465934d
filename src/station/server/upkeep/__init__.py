"""What takes room, what may go, and copies of all of it."""
