"""Model, data and training: a line through points, fitted in NumPy."""

import numpy as np

TRUE = np.array([2.0, -1.0], dtype=np.float32)


def make_data(seed, rows=50):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, rows).astype(np.float32)
    y = TRUE[0] * x + TRUE[1] + 0.1 * rng.normal(size=rows).astype(np.float32)
    return x, y


def errors(line, x, y):
    return line[0] * x + line[1] - y


def train(line, x, y, learning_rate, steps=5):
    losses = []
    for _ in range(steps):
        error = errors(line, x, y)
        slope = np.array([(error * x).mean(), error.mean()], dtype=np.float32)
        line = line - np.float32(learning_rate) * slope
        losses.append(float((errors(line, x, y) ** 2).mean()))
    return line, losses
