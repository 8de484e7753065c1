"""Federations across machines: keys, folders to hand to each site, programs, status.

All of it uses Flower's own programs, encrypted, with nodes known by their keys.
"""
