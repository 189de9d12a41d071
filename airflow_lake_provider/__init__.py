"""CSV files and pipelines into Iceberg tables, and out again without a trace."""

__version__ = "0.1.0"
