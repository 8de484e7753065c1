"""Workarounds of Flower, each with its version and the condition for its removal."""
