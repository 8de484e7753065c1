"""Keys without effect: refused where a user says them, left out where others override."""

import pytest

from fedsuite.core.errors import ConfigError
from fedsuite.core.keys import Unless, With
from fedsuite.experiment.experiment import Experiment
from fedsuite.sweeps.points import make_points


def refusal(**given):
    values = {name.replace("_", "-"): value for name, value in given.items()}
    with pytest.raises(ConfigError) as caught:
        Experiment.from_values(values)
    return str(caught.value)


REFUSED = {
    "key focal-gamma = 3.0 has no effect with loss = 'auto': set loss = 'focal' "
    "too, or leave focal-gamma out": {"focal_gamma": 3.0},
    "key upload-clip = 2.0 has no effect with upload-noise-multiplier = 0.0: set another "
    "upload-noise-multiplier too, or leave upload-clip out": {"upload_clip": 2.0},
    "key less-forgetting = 'both' has no effect with local-steps = 1 and transfer-steps = "
    "1: set another local-steps or set another transfer-steps too, or leave "
    "less-forgetting out": {
        "method": "fedmd",
        "less_forgetting": "both",
        "transfer_steps": 1,
        "local_steps": 1,
    },
    "key server-momentum = 0.9 has no effect with method standalone: its clients do not "
    "all train one shared model and send it back; leave it out": {
        "method": "standalone",
        "server_momentum": 0.9,
    },
}


@pytest.mark.parametrize(("line", "given"), REFUSED.items())
def test_refused_in_one_line(line, given):
    assert refusal(**given) == line


@pytest.mark.parametrize("method", ["fedmd", "fedmd-lf", "fedal"])
def test_a_local_phase_of_one_step_has_nothing_to_forget(method):
    given = {"method": method, "less-forgetting": "local", "transfer-steps": 2}
    line = (
        "key less-forgetting = 'local' cannot go with local-steps = 1: a phase of one step "
        "starts from the model that it would stay near to; set another local-steps too, or "
        "another less-forgetting"
    )
    with pytest.raises(ConfigError) as caught:
        Experiment.from_values({**given, "local-steps": 1})
    assert str(caught.value) == line
    for steps in ({"local-steps": 2}, {"local-steps": 0, "local-epochs": 1}):
        assert Experiment.from_values({**given, **steps})["less-forgetting"] == "local"
    both = {**given, "less-forgetting": "both", "local-steps": 1}
    assert Experiment.from_values(both)["less-forgetting"] == "both"


def test_a_value_is_not_replaced_by_a_default_that_has_an_effect(tmp_path):
    """FedMD-LF's default is both: an override may not switch on the transfer's term."""
    path = tmp_path / "e.toml"
    path.write_text('method = "fedmd-lf"\nless-forgetting = "local"\n')
    with pytest.raises(ConfigError, match="less-forgetting = 'local' cannot go"):
        Experiment.load(path, {"local-steps": 1})


def test_defaults_are_always_taken():
    given = {"focal-gamma": 2.0, "upload-clip": 1.0, "server-momentum": 0.0}
    plain = Experiment.from_values({"method": "standalone"})
    assert Experiment.from_values({"method": "standalone", **given}) == plain


def test_what_overrides_leave_without_effect_falls_to_its_default(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text('loss = "focal"\nfocal-gamma = 3.0\nserver-momentum = 0.9\n')
    kept = Experiment.load(path)
    assert (kept["focal-gamma"], kept["server-momentum"]) == (3.0, 0.9)
    plain = Experiment.load(path, {"loss": "cross-entropy", "method": "standalone"})
    assert (plain["focal-gamma"], plain["server-momentum"]) == (2.0, 0.0)
    assert "no effect here" in plain.note
    assert "focal-gamma" in plain.note and "server-momentum" in plain.note


def test_overrides_themselves_are_refused(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text("")
    with pytest.raises(ConfigError, match="focal-gamma"):
        Experiment.load(path, {"loss": "cross-entropy", "focal-gamma": 3.0})
    path.write_text("focal-gamma = 3.0\n")
    with pytest.raises(ConfigError, match="focal-gamma"):
        Experiment.load(path, {"num-rounds": 3})


def test_keys_of_a_method_that_an_override_replaced_are_left_out(tmp_path):
    path = tmp_path / "e.toml"
    path.write_text('method = "fedeba-plus"\nalpha = 0.9\n')
    changed = Experiment.load(path, {"method": "fedavg"})
    assert changed == Experiment.from_values({"method": "fedavg"})
    assert changed.note == "left out, as they have no effect here: alpha"
    assert Experiment.load(path, {"method": "prac-fedeba-plus"})["alpha"] == 0.9
    for overrides in ({"method": "fedavg", "alpha": 0.9}, {"model": "cnn", "alpha": 0.9}):
        with pytest.raises(ConfigError, match="alpha"):
            Experiment.load(path, {"method": "fedavg", **overrides})
    path.write_text('method = "fedavg"\nalpha = 0.9\n')
    with pytest.raises(ConfigError, match=r"alpha = 0\.9: it does not apply"):
        Experiment.load(path, {"model": "cnn"})


def test_a_sweep_may_switch_off_what_its_file_describes():
    base = {"focal-gamma": 1.0}
    off, on = make_points(base, ["loss=auto,focal"], range(1))
    assert off.fingerprint == make_points({}, ["loss=auto"], range(1))[0].fingerprint
    assert on.fingerprint != make_points({}, ["loss=focal"], range(1))[0].fingerprint


def test_needs_of_keys_that_are_not_there_are_met():
    assert With("loss", "focal").met({}) and Unless("loss", "focal").met({})
    assert With("loss", "focal").met({"loss": "focal"})
    assert not Unless("loss", "focal").met({"loss": "focal"})
