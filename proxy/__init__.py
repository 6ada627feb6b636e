"""Proxy replicas: read the shared view, choose an instance, relay the bytes. No replica has state another one needs."""
