"""torchvision's networks: what goes in, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsuite.core.errors import ConfigError
from fedsuite.engines.api import resume, run
from fedsuite.experiment.data_and_models import federated_data, network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.models import parameter_groups
from fedsuite.models.arrays import load_arrays, model_arrays
from fedsuite.models.assignment import parse_networks
from fedsuite.models.decomposed import DecomposedConv2d, decompose
from fedsuite.models.features import feature_width, with_features
from fedsuite.rounds.aggregation import WeightedMean
from tests.helpers import digits_experiment, run_digits
from tests.models.vision_files import SCALED, SMALL, build, images, refusal, same_state
from tests.small_runs import final_model

HEADS = {
    "alexnet": (64, "classifier.6"),
    "convnext_tiny": (32, "classifier.2"),
    "densenet121": (32, "classifier"),
    "efficientnet_b0": (32, "classifier.1"),
    "googlenet": (32, "fc"),
    "inception_v3": (75, "fc"),
    "mnasnet0_5": (32, "classifier.1"),
    "mobilenet_v2": (32, "classifier.1"),
    "mobilenet_v3_small": (32, "classifier.3"),
    "regnet_y_400mf": (32, "fc"),
    "resnet18": (32, "fc"),
    "shufflenet_v2_x0_5": (32, "fc"),
    "squeezenet1_1": (32, "classifier.1"),
    "swin_t": (32, "head"),
    "vgg11": (32, "classifier.6"),
    "vit_b_32": (64, "heads.head"),
}
"""One network of each family: a size that it takes, and its classifier."""


# Without torchvision


def test_without_torchvision_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    expected = "model torchvision needs torchvision: pip install torchvision"
    assert refusal() == expected


def test_a_torchvision_that_cannot_be_imported_is_told_apart(monkeypatch, tmp_path):
    for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "torchvision").mkdir()
    broken = 'raise RuntimeError("operator torchvision::nms does not exist\\nand more")\n'
    (tmp_path / "torchvision" / "__init__.py").write_text(broken)
    monkeypatch.syspath_prepend(tmp_path)
    assert refusal() == (
        "model torchvision: torchvision is installed but cannot be imported (operator "
        "torchvision::nms does not exist): install builds of torch and torchvision that "
        "belong together"
    )


def test_nothing_imports_torchvision_before_it_is_used():
    program = (
        "import sys, fedsuite, fedsuite.cli, fedsuite.client_app, fedsuite.server_app\n"
        "import fedsuite.models.vision, fedsuite.experiment.key_catalog\n"
        "assert 'torchvision-weights' in fedsuite.experiment.key_catalog.known_keys()\n"
        "from fedsuite.core.registry import METHODS\n"
        "[fedsuite.clients.load_client(m) for m in METHODS.values()]\n"
        "assert not [n for n in sys.modules if n.partition('.')[0] == 'torchvision']\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_experiment_is_checked_without_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    experiment = digits_experiment(model="torchvision", torchvision_weights="default")
    assert experiment["torchvision-model"] == "resnet18"
    with pytest.raises(ConfigError, match="belongs to model torchvision"):
        digits_experiment(model="mlp", torchvision_image_size=64)
    with pytest.raises(ConfigError, match="torchvision-image-size = -1"):
        digits_experiment(model="torchvision", torchvision_image_size=-1)
    with pytest.raises(ConfigError, match="pip install torchvision"):
        run_digits(experiment)


def test_it_can_be_an_entry_of_client_models():
    (network,) = parse_networks("torchvision:torchvision-model=mobilenet_v2")
    assert network.options == {
        "torchvision_model": "mobilenet_v2",
        "torchvision_weights": "",
        "torchvision_image_size": 0,
    }


# Drawn networks


@pytest.mark.parametrize("name", HEADS)
def test_a_drawn_network_is_torchvisions(torchvision, name):
    size, head = HEADS[name]
    model = build(name, (3, size, size)).eval()
    options = {"vit_b_32": {"image_size": 64}}.get(name, {})
    if name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": False}
    own = torchvision.models.get_model(name, weights=None, num_classes=7, **options).eval()
    own.load_state_dict(model.network.state_dict())
    inputs = images(2, 3, size, size)
    assert torch.equal(model(inputs), own(inputs))
    assert model(inputs).shape == (2, 7)
    groups = parameter_groups(model)
    assert groups.head == (f"network.{head}.weight", f"network.{head}.bias")
    assert set(groups.names) == set(model.state_dict())
    assert all(key.startswith("network.") for key in model.state_dict())
    model.train()
    functional.cross_entropy(model(inputs), torch.tensor([1, 2])).backward()
    weight = model.get_parameter(groups.head[0])
    assert weight.grad is not None and weight.grad.any()


def test_the_draw_is_the_seeds(torchvision):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same_state(first, build(seed=5))
    other = build(seed=6)
    assert not torch.equal(
        first.state_dict()["network.features.0.weight"],
        other.state_dict()["network.features.0.weight"],
    )
    assert first.training and all(m.training for m in first.modules())


def test_building_leaves_statistics_as_they_were_drawn(torchvision):
    state = build("mobilenet_v3_small").state_dict()
    counts = [v for k, v in state.items() if k.endswith("num_batches_tracked")]
    assert counts and all(v.dtype == torch.int64 and v == 0 for v in counts)
    means = [v for k, v in state.items() if k.endswith("running_mean")]
    assert means and not any(v.any() for v in means)


def test_a_grey_image_stands_in_all_channels(torchvision):
    grey = build(shape=(1, 32, 32)).eval()
    colour = build(shape=(3, 32, 32)).eval()
    inputs = images(2, 1, 32, 32)
    assert same_state(grey, colour)
    assert torch.equal(grey(inputs), colour(inputs.repeat(1, 3, 1, 1)))


def test_images_are_resized_inside(torchvision):
    model = build(shape=(3, 20, 28), image_size=40).eval()
    inputs = images(2, 3, 20, 28)
    resized = functional.interpolate(inputs, (40, 40), mode="bilinear", antialias=True)
    assert torch.equal(model(inputs), model.network(resized))
    smaller = build(shape=(3, 64, 64), image_size=32)
    assert smaller.prepared(images(1, 3, 64, 64)).shape == (1, 3, 32, 32)
    # A pattern finer than the result's pixels is averaged away.
    stripes = torch.zeros(1, 3, 64, 64)
    stripes[..., ::2] = 1.0
    inner = smaller.prepared(stripes)[..., 4:-4]
    torch.testing.assert_close(inner, torch.full_like(inner, 0.5))


def test_drawn_networks_leave_the_scaling_of_data(torchvision):
    inputs = images(2, 3, 32, 32)
    assert torch.equal(build(standardisation=SCALED).prepared(inputs), inputs)


# What is refused


def test_an_unknown_network_gets_the_nearest(torchvision):
    text = refusal("resnet81")
    assert text.startswith("key torchvision-model = 'resnet81': no classification network")
    assert text.endswith("the nearest is 'resnet18'")
    assert "no classification network" in refusal("maskrcnn_resnet50_fpn")


def test_unknown_weights_get_those_there_are(torchvision):
    text = refusal("mobilenet_v2", weights="IMAGENET")
    assert "mobilenet_v2 has IMAGENET1K_V1, IMAGENET1K_V2; default is IMAGENET1K_V2" in text


@pytest.mark.parametrize(
    ("name", "side"),
    [("inception_v3", 28), ("vgg11", 28), ("alexnet", 32), ("vit_b_16", 30)],
)
def test_images_that_are_too_small(torchvision, name, side):
    text = refusal(name, (1, side, side))
    assert f"{name} cannot take images of {side} x {side} pixels (" in text
    assert text.endswith("set torchvision-image-size, such as 64 or 224")


@pytest.mark.parametrize("name", ["vit_b_32", "maxvit_t"])
def test_weights_for_one_size_say_which(torchvision, name):
    text = refusal(name, weights="default")
    assert text.endswith("got 32 x 32: set torchvision-image-size = 224")


def test_what_is_no_image(torchvision):
    assert "got 2 channels" in refusal(shape=(2, 32, 32))
    assert "needs images (channels, height, width)" in refusal(shape=(13,))


def test_a_network_without_a_classifier_at_its_end(torchvision, monkeypatch):
    def changed(name, **options):
        return nn.Sequential(nn.Conv2d(3, 7, 1), nn.Flatten(), nn.Linear(7, 8))

    monkeypatch.setattr(torchvision.models, "get_model", changed)
    assert "its last layer is no classifier of 7 classes" in refusal()


# With methods


def test_a_convolution_as_classifier_gives_no_features(torchvision):
    model = build()
    for look in (feature_width, lambda m: with_features(m, images(2, 3, 32, 32))):
        with pytest.raises(
            ConfigError, match=r"network\.classifier\.1, is no linear layer"
        ):
            look(model)


def test_convolutions_can_be_factored(torchvision):
    model = build("mobilenet_v3_small").eval()
    factored = decompose(model, 25).eval()
    assert any(isinstance(m, DecomposedConv2d) for m in factored.modules())
    inputs = images(2, 3, 32, 32)
    torch.testing.assert_close(factored(inputs), model(inputs), rtol=1e-3, atol=1e-4)
    groups = parameter_groups(factored)
    assert groups.atoms and groups.head == parameter_groups(model).head
    assert parameter_groups(decompose(build(), 4)).head == parameter_groups(build()).head


def test_fedpara_refuses_networks_that_reach_past_their_layers(torchvision):
    def made(name):
        keys = {"torchvision_model": name, "torchvision_image_size": 32, "fedpara": True}
        experiment = digits_experiment(model="torchvision", **keys)

        class Data:
            input_shape = (1, 8, 8)
            num_classes = 10
            standardisation = (0.0,), (1.0,)

        return network_model(experiment, Data())

    assert made("mobilenet_v3_small")(images(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(ConfigError, match="cannot work with factors in place of weights"):
        made("swin_t")


def test_integer_buffers_survive_the_average(torchvision):
    arrays = model_arrays(build("swin_t"))
    numbers = [key for key in arrays if key.endswith("relative_position_index")]
    assert numbers and arrays[numbers[0]].dtype == np.int64
    mean = WeightedMean()
    for weight in (0.1, 0.7, 1 / 3):
        mean.add(arrays, weight)
    result = mean.result()
    for key in numbers:
        assert result[key].dtype == np.int64
        np.testing.assert_array_equal(result[key], arrays[key])
    load_arrays(build("swin_t"), result)


VISION = {
    "dataset": "digits",
    "model": "torchvision",
    "torchvision-model": SMALL,
    "torchvision-image-size": 64,
    "num-clients": 2,
    "num-rounds": 1,
    "local-steps": 2,
    "report": False,
    "batch-size": 8,
    "learning-rate": 0.01,
    "device": "cpu",
}


def test_private_heads_stay_with_their_clients(torchvision):
    experiment = Experiment.from_values({**VISION, "method": "fedper", "run-name": "run"})
    first = model_arrays(network_model(experiment, federated_data(experiment)))
    last = run_digits(experiment).arrays[-1]
    for key in first:
        if "classifier" in key:
            assert np.array_equal(first[key], last[key]), key
        elif key.endswith("weight"):
            assert not np.array_equal(first[key], last[key]), key


@pytest.mark.parametrize("name", [SMALL, "mobilenet_v3_small"])
def test_a_run_has_the_same_bits_resumed_and_shared_out(torchvision, tmp_path, name):
    def ran(folder, **changes):
        return run(
            {
                **VISION,
                "torchvision-model": name,
                "torchvision-augmentation": "rand-augment",
                "crop-and-flip": True,
                "checkpoint-every": 1,
                "output-dir": str(tmp_path),
                "run-name": folder,
                **changes,
            }
        )

    def model(folder):
        return final_model(tmp_path / folder)

    ran("whole", **{"num-rounds": 2})
    ran("parts")
    once = model("parts")
    resume(tmp_path / "parts", num_rounds=2)
    ran("shared", workers=2)
    assert model("shared") == once
    assert model("parts") == model("whole") != once
