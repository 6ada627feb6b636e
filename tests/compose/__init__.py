"""The docker-compose cluster: its files as they are written, and the whole of it running."""
