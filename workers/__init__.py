"""Queue workers: the process that owns an instance's queue, predicts when its engine will be free, and publishes it."""
