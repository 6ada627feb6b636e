"""The hop: one HTTP/1.1 step between two of our processes, or from a worker to an engine.

Both the proxy and the worker are relays, and what they must agree on stands here: header names, connections that hand
bytes on without decoding them, replies that write them. Knows nothing of Redis, records or policies; the rest of
`bus` knows nothing of it.
"""
