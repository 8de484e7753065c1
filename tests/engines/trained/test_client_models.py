"""The model of a client scores what the run recorded for the client, over all methods."""

import shutil

import pytest
import torch

import fedsuite
from fedsuite.core.errors import RunError
from fedsuite.core.registry import METHODS
from fedsuite.engines.trained.experiment import experiment_of
from fedsuite.experiment.data_and_models import federated_data
from fedsuite.strategies import load_strategy
from fedsuite.training.evaluation import evaluate_model
from tests.small_runs import SMALL

NETWORK = {"model": "mlp", "hidden-width": 16, "hidden-layers": 1}

SOME = (
    "fedavg-ft",  # tuned before it is scored
    "fedper",  # a head of its own
    "fedrod",  # a second head
    "fedem",  # a mixture of outputs
    "cffl",  # a reward for each client
)

LAYERS = {
    "personal atoms": {
        **{"decomposition": True, "atoms": 3, "personal-atoms": True},
        **{"model": "cnn-shallow", "personal-head": "local"},
    },
    "networks": {"method": "fedal", "client-models": "mlp, linear", "public-size": 100},
}


def finished(folder, **keys):
    """Return a run of two rounds."""
    values = {**SMALL, **NETWORK, "num-rounds": 2, **keys}
    # Not every method draws.
    del values["clients-per-round"]
    if values["method"] in METHODS:
        strategy = load_strategy(METHODS[values["method"]])
        values |= {"public-size": 100} if strategy.takes("public_rows") else {}
        if strategy.takes("validation"):
            values["server-validation-fraction"] = 0.1
    if values["model"] != "mlp":
        values = {k: v for k, v in values.items() if not k.startswith("hidden-")}
    return fedsuite.run({"output-dir": str(folder), "run-name": "run", **values})


def check(run, capsys):
    recorded = run.client_values("evaluate", "accuracy")
    data = federated_data(experiment_of(run.path))
    assert recorded
    capsys.readouterr()
    for client, accuracy in recorded.items():
        model = run.client_model(client)
        assert not any(module.training for module in model.modules())
        assert evaluate_model(model, data.client(client).test)[1] == accuracy
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("method", SOME)
def test_a_clients_model_scores_what_the_run_recorded(method, tmp_path, capsys):
    check(finished(tmp_path, method=method), capsys)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(METHODS))
def test_over_all_methods(method, tmp_path, capsys):
    check(finished(tmp_path, method=method), capsys)


@pytest.mark.slow
@pytest.mark.parametrize("keys", LAYERS.values(), ids=LAYERS)
def test_whatever_stands_between_server_and_client(keys, tmp_path, capsys):
    check(finished(tmp_path, **{"method": "fedavg", **keys}), capsys)


def test_the_model_of_all_is_each_clients(tmp_path):
    run = finished(tmp_path, method="fedavg")
    rows = federated_data(experiment_of(run.path)).client(0).test.features
    with torch.no_grad():
        assert torch.equal(run.model()(rows), run.client_model(2)(rows))


@pytest.mark.parametrize("method", ["fedper", "standalone", "ifca", "cffl"])
def test_a_method_without_a_model_of_all_says_so(method, tmp_path):
    run = finished(tmp_path, method=method)
    with pytest.raises(RunError, match=f"{method} ends without one model .*client_model"):
        run.model()


def test_a_model_whose_part_is_not_here(tmp_path):
    run = finished(tmp_path, method="fedper")
    shutil.rmtree(run.path / "state" / "1")
    run.client_model("0")
    with pytest.raises(RunError, match="client 1: a part of its model stays with it"):
        run.client_model(1)
    with pytest.raises(RunError, match="client 'x': this run's clients are 0 to 3"):
        run.client_model("x")
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(RunError, match="checkpoint-every above 0"):
        run.client_model(0)


def test_another_accuracy_is_told(tmp_path, capsys):
    run = finished(tmp_path, method="fedavg")
    rows = run.path / "clients.jsonl"
    rows.write_text(rows.read_text().replace('"accuracy": ', '"accuracy": 0.5, "was": '))
    fedsuite.load_run(run.path).client_model(0)
    assert "the run recorded 50.00 %" in capsys.readouterr().out
