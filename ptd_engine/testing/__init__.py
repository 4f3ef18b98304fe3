"""Helpers shared by the tests and the benchmarks: tiny models, comparisons with a reference."""
