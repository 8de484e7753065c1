"""Names that installed packages add: found, clashing, broken, and left alone."""

import sys
from pathlib import Path

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.core.plug_ins import import_code, is_code
from fedsuite.core.registry import METHODS, find_method
from fedsuite.data import DATASETS
from fedsuite.experiment.run_settings import RunSettings
from fedsuite.models import MODELS
from fedsuite.strategies import load_strategy
from tests.plug_ins.fakes import example, installed, write_package

PROX = """
from fedsuite.strategies import FedProx

class Near(FedProx):
    '''FedProx with a stronger pull.'''
    proximal_mu: float = 0.5
"""


def methods(**entries: str) -> dict[str, dict[str, str]]:
    return {"fedsuite.methods": {n.replace("_", "-"): c for n, c in entries.items()}}


CODE = ("a:b", "a.b_c:D")
NO_CODE = ("mlp", "a:b.c", "a: b", "a:b:c", ":b", "a:", "a..b:c", 3)


@pytest.mark.parametrize("text", [*CODE, *NO_CODE])
def test_what_names_code(text: object) -> None:
    assert is_code(text) is (text in CODE)


def test_a_package_adds_one_of_each(tmp_path: Path) -> None:
    with example(tmp_path):
        assert {"anchored", "fedavg"} < set(METHODS)
        assert METHODS.by_origin() == {"fedsuite-example 0.1.0": ["anchored"]}
        method = find_method("anchored")
        assert method.client == "fedsuite_example.client:AnchoredClient"
        keys = {key.name for key in load_strategy(method).method_keys()}
        assert keys == {"anchored-way", "server-learning-rate"}
        assert MODELS["two-layers"].description.startswith("One hidden layer")
        assert DATASETS["stripes"].reader == "fedsuite_example.data:read"
        assert not METHODS.broken()
    assert "anchored" not in METHODS


def test_a_subclass_has_the_client_of_the_method_it_comes_from(tmp_path: Path) -> None:
    write_package(tmp_path, "near", methods(near="near_module:Near"), {"near_module": PROX})
    with installed(tmp_path):
        assert METHODS["near"].client == METHODS["fedprox"].client


def test_a_client_that_is_not_there(tmp_path: Path) -> None:
    source = PROX.replace("FedProx\n", "FedAvg\n").replace("FedProx)", "FedAvg)")
    source = source.replace(
        "    proximal_mu: float = 0.5",
        "    from fedsuite.rounds.declaration import ClientNeeds\n"
        "    NEEDS_OF_CLIENT = ClientNeeds('NearClient', 'is near')",
    )
    near = methods(near="near_module:Near")
    write_package(tmp_path, "near", near, {"near_module": source})
    with installed(tmp_path), pytest.raises(ConfigError, match="client 'NearClient' of"):
        METHODS["near"]


def test_a_name_of_ours_is_refused_with_both_packages(tmp_path: Path) -> None:
    write_package(tmp_path, "rival", methods(fedavg="near_module:Near"))
    with installed(tmp_path):
        told = (
            "method 'fedavg' is of fedsuite and of rival 1.0: uninstall rival, or have it"
        )
        with pytest.raises(ConfigError, match=told):
            find_method("fedavg")
        assert "fedavg" not in set(METHODS)
        assert find_method("fedprox").name == "fedprox"
    assert find_method("fedavg").name == "fedavg"


def test_a_name_of_two_packages_is_refused_with_both(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_package(tmp_path / name, name, methods(near=f"{name}_module:Near"))
    with installed(tmp_path / "one", tmp_path / "two"):
        with pytest.raises(ConfigError, match=r"'near' is of (one|two) 1.0 and of"):
            METHODS["near"]
        ((origin, _),) = METHODS.broken().values()
        assert set(origin.split(", ")) == {"one 1.0", "two 1.0"}


BROKEN = {
    "raises": ("broken_module:Near", "cannot be imported .RuntimeError: no luck"),
    "ends": ("ending_module:Near", "cannot be imported .SystemExit: 3"),
    "absent": ("no_such_module:Near", "no module 'no_such_module' here: install"),
    "nameless": ("near_module:Far", "module near_module has no 'Far'"),
    "other": ("near_module:FedProx.KEYS", "expected a name of small letters"),
    "number": ("near_module:__name__", "is no strategy: derive a class"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_package_is_listed_and_harms_nobody(name: str, tmp_path: Path) -> None:
    code, reason = BROKEN[name]
    modules = {
        "near_module": PROX,
        "broken_module": "raise RuntimeError('no luck')",
        "ending_module": "raise SystemExit(3)",
    }
    write_package(tmp_path, "broken", methods(**{name: code}), modules)
    with installed(tmp_path):
        assert find_method("fedavg").name == "fedavg"
        assert name in METHODS and name not in set(METHODS)
        ((origin, told),) = METHODS.broken().values()
        assert origin == "broken 1.0"
        assert told.startswith(f"method {name!r} of broken 1.0: ")
        with pytest.raises(ConfigError, match=reason) as caught:
            find_method(name)
        assert "\n" not in str(caught.value)


def test_nothing_is_imported_before_it_is_named(tmp_path: Path) -> None:
    write_package(tmp_path, "near", methods(near="near_module:Near"), {"near_module": PROX})
    with installed(tmp_path):
        assert "near" in METHODS and METHODS["fedprox"].name == "fedprox"
        (method,) = (key for key in RunSettings.KEYS if key.name == "method")
        assert "or a name that an installed package adds" in method.allowed()
        assert "near_module" not in sys.modules
        assert METHODS["near"].strategy == "near_module:Near"
        assert "near_module" in sys.modules


def test_code_is_a_name_of_models_and_data_sets_alone() -> None:
    for registry in (MODELS, DATASETS):
        assert "no_module_of_that_name:x" in registry
        assert "no_module_of_that_name" not in registry
    assert "no_module_of_that_name:x" not in METHODS
    with pytest.raises(ConfigError, match="no module 'no_module_of_that_name' here"):
        import_code("no_module_of_that_name:x")
