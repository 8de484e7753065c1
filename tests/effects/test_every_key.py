"""Every key of every method changes what a run does, is refused, or is told to do nothing.

The product of methods and keys is for ``make nightly``; here each key is tried with one
method that it has an effect with, and each method with its own keys.
"""

from collections.abc import Iterator

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.core.registry import METHODS
from fedsuite.experiment.key_catalog import keys_of, known_keys
from tests.effects.cases import ELSEWHERE, LISTED, NO_WRAPPER, WRAPPED, Case, cases
from tests.effects.outcomes import outcome
from tests.effects.runs import base, did, recent, refused_replies

OF_PRIVATE_MODELS = ("client-models", "client-model-assignment", "client-initialisation")
"""Keys that FedAvg refuses, and Standalone does not."""


def effective(tried: Iterator[Case]) -> set[str]:
    """Return the keys of cases that change a run; one case that does is enough."""
    found: set[str] = set()
    for case in tried:
        if case.key not in found and outcome(case) == "changed":
            found.add(case.key)
    return found


def test_lists_name_keys():
    assert {*LISTED, *ELSEWHERE} <= set(known_keys())


def test_equal_experiments_do_the_same():
    first = did(base("fedavg"))
    recent.cache_clear()
    assert did(base("fedavg")) == first


@pytest.mark.parametrize("part", [0, 1])
def test_each_key_has_an_effect_with_some_method(part):
    own = {key.name for name in METHODS for key in keys_of("method", name)}
    wanted = set(known_keys()) - own - {*LISTED, *ELSEWHERE, *OF_PRIVATE_MODELS}
    half = set(sorted(wanted)[part::2])
    assert effective(cases("fedavg", wanted=half)) == half


def test_keys_of_private_models_have_an_effect():
    wanted = set(OF_PRIVATE_MODELS)
    assert effective(cases("standalone", wanted=wanted)) == wanted


@pytest.mark.parametrize("method", METHODS)
def test_each_method_heeds_its_own_keys(method):
    own = {key.name for key in keys_of("method", method)}
    assert effective(cases(method, wanted=own)) == own


def test_clients_that_refresh_their_atoms_train_by_the_methods_loss():
    """Their messages to evaluate must tell what the loss needs, as those to train do."""
    wanted = {"refresh-epochs"}
    assert effective(cases("propfair", wanted=wanted)) == wanted


@pytest.mark.parametrize("method", METHODS)
def test_another_training_of_a_method_takes_the_keys_of_its_training(method):
    """FedSAC, FedAS and Per-FedAvg also train at a rate of their own, without decay."""
    keys = {"learning-rate-decay": 0.5, "learning-rate-decay-every": 2}
    try:
        run = did({**base(method), **keys})
    except ConfigError:
        return
    assert "error" not in run
    assert refused_replies(run) == 0


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("around", [NO_WRAPPER, WRAPPED], ids=["alone", "decomposed"])
@pytest.mark.parametrize("method", METHODS)
def test_no_key_is_taken_in_silence(method, around):
    wrong = []
    for case in cases(method, around):
        try:
            outcome(case)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)
