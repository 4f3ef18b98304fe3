"""Benchmarks: `python -m bench --help`, from the root of the repository.

Each checks its results before it prints a time, prints a table for people, and as the last line one
JSON document for programs. Times are medians after a warm-up, with the garbage collector off.
"""
