"""The dashboard: static files, this replica's own state, and the pressure of the last minutes."""
