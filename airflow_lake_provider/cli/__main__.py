"""``python -m airflow_lake_provider.cli``."""

import sys

from airflow_lake_provider.cli import main

sys.exit(main())
