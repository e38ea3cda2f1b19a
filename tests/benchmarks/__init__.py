"""Benchmarks, run by hand as `python -m tests.benchmarks.NAME`."""
