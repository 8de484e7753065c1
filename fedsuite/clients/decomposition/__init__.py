"""Layers made of factors, which travel apart."""
