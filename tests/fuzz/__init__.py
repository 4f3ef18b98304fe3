"""Fuzz targets over everything that is read from outside: model files and requests.

`test_targets.py` runs each with its corpus and with a fixed number of inputs;
`python -m fuzz.explore TARGET SECONDS` (from tests/) lets atheris look for more.
"""
