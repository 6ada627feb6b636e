"""What all parts share: the bus (records, keys, scripts, publisher, reader) and, in `bus.hop`, the HTTP step."""
