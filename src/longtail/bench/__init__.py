"""SUITES → TABLES: grids of runs, one process and one JSON line each, and Markdown tables of the lines."""
