"""Worker processes of the local engine: the key ``workers``."""
