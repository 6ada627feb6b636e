"""The simulated engine: vLLM's HTTP surface over a model of its scheduler, good enough to measure a gateway on."""
