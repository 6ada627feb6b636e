"""The `forebay` command, the cluster on one machine, the simulated engine and the load generator."""
