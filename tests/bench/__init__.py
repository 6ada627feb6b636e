"""What Forebay costs, in ratios to a bare relay measured in the same run. `python -m tests.bench`, or `make bench`."""
