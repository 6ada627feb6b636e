"""The whole system on one machine: its parts as supervised processes, and the view of them."""
