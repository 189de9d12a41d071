"""Units of heavy work: what is claimed from the ledger is done by an engine, and the outcome is written back."""
