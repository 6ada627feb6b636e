"""Routing judged in virtual time: a fleet, its replicas and the bus as events, choices by the project's own code."""
