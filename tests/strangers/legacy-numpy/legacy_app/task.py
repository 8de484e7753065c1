"""Data and loss of a linear model."""

import numpy as np

TRUE = np.array([1.0, 2.0, -1.0])


def make_data(seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(30, len(TRUE)))
    return features, features @ TRUE + 0.5 + 0.1 * rng.normal(size=30)


def loss_of(parameters, features, target):
    weight, offset = parameters
    return float(((features @ weight + offset - target) ** 2).mean())
