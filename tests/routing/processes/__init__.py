"""Routing judged with the real processes: replicas, bus, queue workers and simulated engines under a replayed trace."""
