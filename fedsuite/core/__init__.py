"""What everything stands on: errors, files, logs, keys, random streams, metrics."""
