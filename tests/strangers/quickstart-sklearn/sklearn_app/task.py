"""Model and data."""

from functools import cache

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

LABELS = 10
FEATURES = 64
HELD_OUT = 100


def get_model_params(model):
    if model.fit_intercept:
        return [model.coef_, model.intercept_]
    return [model.coef_]


def set_model_params(model, params):
    model.coef_ = params[0]
    if model.fit_intercept:
        model.intercept_ = params[1]
    return model


def set_initial_params(model):
    model.classes_ = np.arange(LABELS)
    model.coef_ = np.zeros((LABELS, FEATURES))
    if model.fit_intercept:
        model.intercept_ = np.zeros((LABELS,))


def create_model(local_epochs):
    model = LogisticRegression(max_iter=local_epochs, warm_start=True)
    set_initial_params(model)
    return model


@cache
def dataset():
    features, labels = load_digits(return_X_y=True)
    return features / 16, labels


def load_data(partition_id, num_partitions):
    features, labels = (part[HELD_OUT:] for part in dataset())
    features, labels = (
        features[partition_id::num_partitions],
        labels[partition_id::num_partitions],
    )
    split = len(labels) * 4 // 5
    return features[:split], features[split:], labels[:split], labels[split:]


def load_test_data():
    features, labels = dataset()
    return features[:HELD_OUT], labels[:HELD_OUT]
