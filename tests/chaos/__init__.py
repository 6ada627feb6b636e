"""Chaos: a fleet of real processes under load while parts of it break, and an account of every single request."""
