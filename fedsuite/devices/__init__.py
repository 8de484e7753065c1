"""Devices that a federation is rehearsed on: how fast they are, and when they are there."""
