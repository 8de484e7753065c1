"""Federated learning methods for Flower, tested and measured."""
