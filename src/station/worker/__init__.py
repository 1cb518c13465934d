"""One machine's boxes and all that happens in them: commands, files, runs, the pool, recovery."""
