"""The API: one table of operations, what handles them, and the description that is made from the table."""
