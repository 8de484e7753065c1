import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression


def load_data(i, n):
    x, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(1).permutation(len(y))
    rows = np.array_split(rows, n)[i]
    x, y = x[rows] / 16, y[rows]
    cut = int(0.8 * len(y))
    return x[:cut], x[cut:], y[:cut], y[cut:]


def create_model(penalty, local_epochs):
    return LogisticRegression(max_iter=local_epochs, warm_start=True, C=1.0)


def get_model_params(model):
    return [model.coef_, model.intercept_]


def set_model_params(model, params):
    model.coef_, model.intercept_ = params
    return model


def set_initial_params(model):
    model.classes_ = np.arange(10)
    model.coef_ = np.zeros((10, 64))
    model.intercept_ = np.zeros((10,))
