"""Who calls, and what each may do."""
