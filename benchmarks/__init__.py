"""Measurements of the product against itself and against DuckDB, as ratios taken in one run."""
