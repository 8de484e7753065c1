"""What fedsuite is compared with: a bare loop, stock Flower, pfl-research.

They read the folder that ``measuring.prepare`` writes, and append a line to
``rounds.jsonl`` at the end of each round. Nothing here knows fedsuite, but for
the bare loop its random streams, and for the start of stock Flower's run its driver.
"""
