"""Open-loop replay of request traces against any OpenAI-compatible server."""
