"""Literal Python twins of the C++ core, written from the algorithm's text and not from the code."""
