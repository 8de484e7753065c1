"""Data, and a booster from what is sent."""

from functools import cache

import xgboost as xgb
from flwr.common.config import unflatten_dict
from sklearn.datasets import make_classification

HELD_OUT = 200


def parameters(context):
    params = unflatten_dict(context.run_config)["params"]
    return {key.replace("-", "_"): value for key, value in params.items()}


def booster_of(arrays, params):
    booster = xgb.Booster(params)
    booster.load_model(bytearray(arrays["0"].numpy().tobytes()))
    return booster


@cache
def dataset():
    return make_classification(1000, 12, n_informative=6, random_state=0)


def load_data(node):
    features, labels = (
        part[HELD_OUT:][node["partition-id"] :: node["num-partitions"]]
        for part in dataset()
    )
    split = len(labels) * 4 // 5
    return (
        xgb.DMatrix(features[:split], labels[:split]),
        xgb.DMatrix(features[split:], labels[split:]),
    )


def load_test_data():
    return xgb.DMatrix(dataset()[0][:HELD_OUT])
