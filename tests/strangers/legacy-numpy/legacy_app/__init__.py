"""Somebody's app."""
