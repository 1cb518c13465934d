"""Benchmarks: ratios of Station to a baseline measured in the same run."""
