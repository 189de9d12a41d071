"""One module for each version of the ledger's schema, oldest first."""
