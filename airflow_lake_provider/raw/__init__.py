"""Raw storage: every uploaded file, byte for byte as it came, in a folder or in a bucket."""

from airflow_lake_provider.raw.names import clean_file_name
from airflow_lake_provider.raw.store import RawFile, RawStore

__all__ = ["RawFile", "RawStore", "clean_file_name"]
