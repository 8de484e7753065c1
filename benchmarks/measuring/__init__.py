"""What the benchmarks share: preparing, watching processes, counting, tables, plots.

The script that measures imports no torch: a child's peak memory, as the kernel keeps it,
begins at its parent's.
"""
