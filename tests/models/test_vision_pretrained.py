"""Pre-trained networks of torchvision: their weights, inputs and files."""

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from fedsuite.data.public import PublicData
from fedsuite.experiment.data_and_models import network_model
from fedsuite.experiment.experiment import Experiment
from fedsuite.models.arrays import model_arrays
from fedsuite.models.assignment import Network, Networks
from fedsuite.models.server_networks import ServerNetworks
from fedsuite.running.server_parts import server_networks
from fedsuite.strategies import CFD
from tests.helpers import digits_experiment
from tests.models.vision_files import (
    MEAN,
    SCALED,
    SMALL,
    STD,
    build,
    drawn,
    images,
    refusal,
)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("squeezenet1_1", 32),
        ("resnet18", 32),
        ("googlenet", 32),
        ("inception_v3", 75),
        ("mnasnet0_5", 32),
        ("vit_b_32", 224),
    ],
)
def test_the_body_is_torchvisions_own_pre_trained(files, torchvision, name, size):
    auxiliary = {"aux_logits": True, "init_weights": False}
    options = auxiliary if name in ("googlenet", "inception_v3") else {}
    state = drawn(name, **options).state_dict()
    weights, _ = files.put(name, state)
    own = torchvision.models.get_model(name, weights=weights, progress=False).eval()
    model = build(name, (3, size, size), weights="default", standardisation=SCALED).eval()
    head = model.classifier_name.removeprefix("network.")
    assert model.get_submodule(model.classifier_name).weight.shape[0] == 7
    # In the place of the classifiers stands what takes their inputs as they are.
    for network in (own, model.network):
        parent, _, leaf = head.rpartition(".")
        setattr(network.get_submodule(parent), leaf, nn.Identity())
    pixels = images(2, 3, size, size)
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in SCALED)
    expected = own(torchvision.transforms.functional.normalize(pixels, MEAN, STD))
    found = model((pixels - mean) / std)
    # Deep networks make much of a last bit of their inputs, and far more of the rest.
    scale = expected.std()
    torch.testing.assert_close(found / scale, expected / scale, rtol=0, atol=0.01)


def test_old_names_of_densenets_layers_are_read(files, torchvision):
    state = drawn("densenet121").state_dict()
    old = type(state)(
        (key.replace("norm1", "norm.1").replace("conv2", "conv.2"), value)
        for key, value in state.items()
    )
    assert old.keys() != state.keys()
    files.put("densenet121", old)
    body = build("densenet121", weights="IMAGENET1K_V1").state_dict()
    for key in state.keys() - {"classifier.weight", "classifier.bias"}:
        assert torch.equal(body[f"network.{key}"], state[key])


@pytest.mark.parametrize("standardisation", [((0.0,), (1.0,)), SCALED])
def test_weights_get_the_inputs_that_they_were_trained_on(files, standardisation):
    files.put(SMALL, drawn(SMALL).state_dict())
    model = build(weights="default", standardisation=standardisation)
    mean, std = (torch.tensor(v).reshape(-1, 1, 1) for v in standardisation)
    pixels = images(2, 3, 32, 32)
    found = model.prepared((pixels - mean) / std)
    wanted_mean, wanted_std = (torch.tensor(v).reshape(3, 1, 1) for v in (MEAN, STD))
    torch.testing.assert_close(found, (pixels - wanted_mean) / wanted_std)


def test_grey_pixels_are_normalised_by_channel(files):
    files.put(SMALL, drawn(SMALL).state_dict())
    model = build(
        shape=(1, 8, 8), weights="default", image_size=32, standardisation=((0.4,), (0.2,))
    )
    # Pixels of 0.5: (0.5 - 0.485) / 0.229 and so on.
    found = model.prepared(torch.full((1, 1, 8, 8), 0.5))
    assert found.shape == (1, 3, 32, 32)
    grey = torch.tensor([(0.5 * 0.2 + 0.4 - m) / s for m, s in zip(MEAN, STD, strict=True)])
    torch.testing.assert_close(found[0, :, 3, 3], grey)


def test_the_classifier_alone_is_drawn(files):
    state = drawn(SMALL).state_dict()
    files.put(SMALL, state)
    first, other = (build(seed=s, weights="default").state_dict() for s in (1, 2))
    again = build(seed=1, weights="default").state_dict()
    for key in first:
        assert torch.equal(first[key], again[key])
        if "classifier" in key:
            assert key.endswith("bias") or not torch.equal(first[key], other[key])
        else:
            assert torch.equal(first[key], state[key.removeprefix("network.")])
    thousand = build(weights="default", classes=1000).state_dict()[
        "network.classifier.1.weight"
    ]
    assert not torch.equal(thousand, state["classifier.1.weight"])


def test_an_experiments_scaling_reaches_the_network(files):
    files.put(SMALL, drawn(SMALL).state_dict())
    keys = {"torchvision_model": SMALL, "torchvision_weights": "default"}
    experiment = digits_experiment(model="torchvision", **keys, torchvision_image_size=32)

    class Data:
        input_shape = (3, 32, 32)
        num_classes = 7
        standardisation = SCALED

    model = network_model(experiment, Data())
    expected = build(weights="default", standardisation=SCALED)
    assert torch.equal(model.scale, expected.scale)
    assert torch.equal(model.shift, expected.shift)
    private = experiment.replace(method="feddf", public_size=4)
    assert server_networks(private, Data()).standardisation == SCALED
    network = Networks((Network("linear"),), (0, 0))
    networks = ServerNetworks(network, (), (1,), lambda index: nn.Linear(1, 1), SCALED)
    strategy = CFD(
        networks=networks,
        public=PublicData(images(4, 3, 32, 32)),
        public_rows=4,
        num_classes=7,
        num_clients=2,
        cfd_server_model=f"torchvision:torchvision-model={SMALL}:torchvision-weights=default",
    )
    assert torch.equal(strategy._build().scale, expected.scale)


def test_constants_stay_at_home_and_move_with_the_model(files):
    files.put(SMALL, drawn(SMALL).state_dict())
    model = build(weights="default", standardisation=SCALED)
    assert not {"scale", "shift"} & set(model_arrays(model))
    assert copy.deepcopy(model).double().scale.dtype == torch.float64


# Files of weights


def test_a_file_that_is_not_there_is_downloaded_and_checked(files):
    state = drawn(SMALL).state_dict()
    _, remote = files.put(SMALL, state, at=files.remote)
    loaded = build(weights="default").state_dict()
    assert torch.equal(loaded["network.features.0.weight"], state["features.0.weight"])
    assert (files.checkpoints / remote.name).read_bytes() == remote.read_bytes()


def test_a_download_of_another_hash_is_refused(files):
    _, file = files.put(SMALL, drawn(SMALL).state_dict(), digits="0" * 8, at=files.remote)
    text = refusal(weights="default")
    assert "invalid hash value" in text
    assert not (files.checkpoints / file.name).exists()


def test_a_file_that_is_there_is_checked_too(files):
    _, file = files.put(SMALL, drawn(SMALL).state_dict(), digits="0" * 8)
    text = refusal(weights="default")
    assert f"{file.name} is damaged, its SHA-256 begins with" in text
    assert f"in the folder {files.checkpoints} (TORCH_HOME" in text


def test_without_a_network_the_line_says_which_file_goes_where(files):
    weights = files.point(SMALL, f"{SMALL}-01234567.pth")
    text = refusal(weights="default")
    assert text.startswith(
        f"model torchvision: weights {weights.name} of {SMALL}: <urlopen"
    )
    assert f"put the file {weights.url} in the folder {files.checkpoints}" in text


def test_default_weights_are_those_that_torchvision_names_so(files):
    files.point("mobilenet_v2", "mobilenet_v2-01234567.pth")
    text = refusal("mobilenet_v2", weights="default")
    assert "weights IMAGENET1K_V2 of mobilenet_v2: <urlopen" in text


def test_the_weights_of_the_simulation_are_torchvisions(torchvision):
    path = Path(__file__).parents[2] / "simulations" / "vision" / "cifar10_pretrained.toml"
    values = Experiment.load(path)
    known = torchvision.models.get_model_weights(str(values["torchvision-model"]))
    assert values["torchvision-weights"] in known.__members__


class Evil:
    """Leaves a mark where unpickling it runs what it holds."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


def test_what_is_more_than_weights_is_not_run(files, tmp_path):
    mark = tmp_path / "mark"
    files.put(SMALL, {"features.0.weight": Evil(mark)})
    assert "the file is damaged or holds more than weights" in refusal(weights="default")
    assert not mark.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("features.0.bias"), "another network's, see features.0.bias"),
        (lambda s: s.update(more=torch.ones(1)), "another network's, see more"),
        (lambda s: s["features.0.bias"].fill_(torch.nan), "not finite in features.0.bias"),
        (lambda s: s.update({"features.0.bias": torch.ones(3)}), "loading state_dict"),
    ],
)
def test_a_file_of_something_else_is_refused(files, change, words):
    state = drawn(SMALL).state_dict()
    change(state)
    files.put(SMALL, state)
    assert words in refusal(weights="default")


def test_a_file_that_is_no_state_is_refused(files):
    files.put(SMALL, torch.ones(3))
    assert str(files.checkpoints) in refusal(weights="default")


def test_garbage_under_the_right_hash_is_refused(files):
    import hashlib

    garbage = b"no weights at all"
    name = f"{SMALL}-{hashlib.sha256(garbage).hexdigest()[:8]}.pth"
    (files.checkpoints / name).write_bytes(garbage)
    files.point(SMALL, name)
    assert "the file is damaged or holds more than weights" in refusal(weights="default")
