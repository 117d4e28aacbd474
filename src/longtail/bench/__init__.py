"""SUITES: grids of runs, one process each, one JSON line each, tables made of the lines."""
