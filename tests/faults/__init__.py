"""Faults: processes that die at any moment, and disks that fill up."""
