"""The embedded engine: one machine, nothing to install but Python packages."""
