"""Networks: sizes, seeds, and what is refused."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsuite.core.errors import ConfigError
from fedsuite.models import MODELS, build_model, count_parameters
from fedsuite.models.arrays import load_arrays, named_tensors
from fedsuite.models.model_settings import DecompositionSettings, ModelSettings

SHAPES = {
    "linear": (1, 8, 8),
    "mlp": (1, 8, 8),
    "cnn": (1, 28, 28),
    "cnn-narrow": (1, 28, 28),
    "cnn-wide": (1, 16, 16),
    "cnn-shallow": (1, 28, 28),
    "cnn-deep": (1, 28, 28),
    "cnn-3x3": (1, 28, 28),
    "cnn-celeba": (3, 42, 42),
    "lenet-5": (1, 28, 28),
    "cnn-fedakd": (1, 28, 28),
    "cnn-plain-2": (1, 28, 28),
    "cnn-plain-3": (3, 16, 16),
    "cnn-pfl": (1, 16, 16),
    "lenet-b": (1, 28, 28),
    "lenet-b100": (1, 16, 16),
    "lenet-c": (1, 28, 28),
    "lenet-m": (1, 28, 28),
    "resnet18": (3, 16, 16),
    "resnet34": (3, 16, 16),
    "resnet18-imagenet": (3, 33, 33),
    "wide-resnet-10-1": (3, 16, 16),
    "wide-resnet-10-2": (3, 16, 16),
    "wide-resnet-16-1": (3, 16, 16),
    "mobilenet-v2": (3, 16, 16),
    "lstm-reddit": (10,),
    "embedding-bag": (10,),
}
OF_WORDS = ("lstm-reddit", "embedding-bag")
CLASSIFIERS = [name for name in MODELS if name not in OF_WORDS]


def state(name, seed, **options):
    return build_model(name, SHAPES[name], 10, seed, **options).state_dict()


@pytest.mark.parametrize(
    ("name", "input_shape", "num_classes", "expected"),
    [
        ("linear", (1, 28, 28), 10, 7_850),
        ("linear", (13,), 2, 28),
        ("mlp", (1, 28, 28), 10, 199_210),
        ("mlp", (784,), 10, 199_210),
        ("cnn", (3, 32, 32), 10, 797_962),
        # conv 1,664 + 102,464, then 1,024 inputs: 393,600 + 73,920 + 1,930.
        ("cnn", (1, 28, 28), 10, 573_578),
        # conv 2,432 + 25,632; 800 inputs: 102,528 + 8,256 + 650.
        ("cnn-narrow", (3, 32, 32), 10, 139_498),
        # conv 9,728 + 409,728; 3,200 inputs: 1,229,184 + 73,920 + 1,930.
        ("cnn-wide", (3, 32, 32), 10, 1_724_490),
        # conv 4,864; 64 inputs: 24,960 + 73,920 + 1,930.
        ("cnn-shallow", (3, 32, 32), 10, 105_674),
        ("cnn-shallow", (3, 40, 24), 10, 105_674),
        # conv 1,792 + 73,856 + 147,584; 512 inputs: 196,992 + 73,920 + 1,930.
        ("cnn-deep", (3, 32, 32), 10, 496_074),
        ("cnn-3x3", (3, 32, 32), 10, 57_770),
        # conv 160 + 4,640 + 18,496; 64 inputs: 8,320 + 1,290.
        ("cnn-3x3", (1, 28, 28), 10, 32_906),
        # conv 320 + 18,496, norms 64 + 128; 3,136 inputs: 31,370.
        ("cnn-fedakd", (1, 28, 28), 10, 50_378),
        ("cnn-fedakd", (3, 32, 32), 10, 60_554),
        # conv 160 + 4,640; 32 channels of 28 x 28: 250,890.
        ("cnn-plain-2", (1, 28, 28), 10, 255_690),
        ("cnn-plain-3", (3, 32, 32), 10, 1_403_978),
        # conv 896 + 18,496; 64 channels of 14 x 14: 1,605,760 + 1,290.
        ("cnn-pfl", (3, 32, 32), 10, 1_626_442),
        ("mlp", (3, 32, 32), 10, 656_810),
        # The published 3,504,872 at 1,000 classes, less 990 rows of 1,281 at the end.
        ("mobilenet-v2", (3, 32, 32), 10, 2_236_682),
        ("mobilenet-v2", (3, 64, 64), 200, 2_480_072),
        ("resnet18", (3, 32, 32), 10, 11_173_962),
        ("resnet18", (3, 32, 32), 100, 11_220_132),
        # Convolutions 10,985,472 + 172,032 + 9,408, norms 9,600, classifier 102,600.
        ("resnet18-imagenet", (3, 64, 64), 200, 11_279_112),
        # torchvision's published count.
        ("resnet18-imagenet", (3, 224, 224), 1000, 11_689_512),
        ("cnn", (3, 32, 32), 100, 815_332),
        # 6 x 6 pixels left: 896 + 3 x 9,248, norms 256, classifier 2,306.
        ("cnn-celeba", (3, 84, 84), 2, 31_202),
        # 156 + 2,416, then 400 inputs: 48,120 + 10,164 + 850.
        ("lenet-5", (1, 28, 28), 10, 61_706),
        ("resnet34", (3, 32, 32), 10, 21_282_122),
        ("wide-resnet-10-1", (3, 32, 32), 10, 77_850),
        ("wide-resnet-10-2", (3, 32, 32), 10, 303_706),
        ("wide-resnet-16-1", (3, 32, 32), 10, 175_066),
        ("lenet-b", (3, 32, 32), 10, 307_842),
        ("lenet-b100", (3, 32, 32), 100, 1_075_044),
        ("lenet-c", (3, 32, 32), 10, 107_690),
        ("lenet-c", (3, 32, 32), 100, 119_300),
        # 64 channels of 2 x 2 pixels: 416 + 12,832 + 18,496 + 32,896 + 1,290.
        ("lenet-c", (1, 28, 28), 10, 65_930),
        ("lenet-m", (3, 32, 32), 10, 878_538),
        ("lenet-m", (3, 32, 32), 100, 924_708),
        # Embedding 2,000,000; cells 468,992 + 526,336; scores 2,570,000.
        ("lstm-reddit", (10,), 10_000, 5_565_328),
        # Embedding 640,000; scores 130.
        ("embedding-bag", (10,), 2, 640_130),
    ],
)
def test_parameter_counts(name, input_shape, num_classes, expected):
    assert count_parameters(build_model(name, input_shape, num_classes, 0)) == expected


def test_frozen_parameters_and_buffers_are_not_counted():
    model = build_model("linear", (4,), 2, 0)
    model[1].bias.requires_grad_(False)
    assert count_parameters(model) == 8


@pytest.mark.parametrize("name", CLASSIFIERS)
@pytest.mark.parametrize("num_classes", [2, 10])
def test_output_has_one_logit_per_class(name, num_classes):
    model = build_model(name, SHAPES[name], num_classes, 0)
    logits = model(torch.zeros(3, *SHAPES[name]))
    assert logits.shape == (3, num_classes)
    assert logits.dtype == torch.float32


def test_lstm_scores_each_next_word_from_what_came_before():
    model = build_model("lstm-reddit", (10,), 12, 0)
    words = torch.arange(20).reshape(2, 10) % 12
    scores = model(words)
    assert scores.shape == (2, 10, 12)
    changed = words.clone()
    changed[0, 6] = 11
    moved = (model(changed) != scores).any(dim=-1)
    assert moved[0].tolist() == [False] * 6 + [True] * 4
    assert not moved[1].any()
    functional.cross_entropy(scores.flatten(0, 1), words.flatten()).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())


def test_lstm_refuses_images():
    with pytest.raises(ConfigError, match=r"takes sequences of words, .* \(1, 8, 8\)"):
        build_model("lstm-reddit", (1, 8, 8), 10, 0)


@pytest.mark.parametrize("input_shape", [(1, 16, 16), (3, 17, 40)])
def test_cnn_takes_images_of_any_sufficient_size(input_shape):
    model = build_model("cnn", input_shape, 10, 0)
    assert model(torch.zeros(2, *input_shape)).shape == (2, 10)


def test_resnet18_takes_digits():
    model = build_model("resnet18", (1, 8, 8), 10, 0)
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("name", MODELS)
def test_same_seed_same_bits(name):
    torch.manual_seed(1)
    first = state(name, seed=5)
    torch.manual_seed(2)
    second = state(name, seed=5)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize("name", MODELS)
def test_arrays_come_as_the_state_dict_has_them(name):
    model = build_model(name, SHAPES[name], 10, 0)
    found, true = named_tensors(model), model.state_dict()
    assert list(found) == list(true)
    assert all(found[key].data_ptr() == true[key].data_ptr() for key in true)


class Doubled(torch.nn.Linear):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[prefix + "twice"] = 2 * self.weight


def test_a_class_with_a_say_in_its_state_dict_is_asked():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), Doubled(2, 3))
    assert list(named_tensors(model)) == ["0.weight", "0.bias", "1.twice"]


def test_a_hook_with_a_say_in_the_state_dict_is_asked():
    def drop(module, state, prefix, metadata):
        del state[f"{prefix}bias"]

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model[0]._register_state_dict_hook(drop)
    assert list(named_tensors(model)) == ["0.weight"]


@pytest.mark.parametrize("name", MODELS)
def test_other_seed_other_weights(name):
    first, second = state(name, seed=5), state(name, seed=6)
    weights = [key for key in first if first[key].ndim >= 2]
    assert weights
    assert not any(torch.equal(first[key], second[key]) for key in weights)


@pytest.mark.parametrize("name", MODELS)
def test_global_generator_is_untouched(name):
    before = torch.get_rng_state()
    state(name, seed=5)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_gradients_reach_every_parameter(name):
    model = build_model(name, SHAPES[name], 10, 0)
    inputs = torch.randn(4, *SHAPES[name], generator=torch.Generator().manual_seed(0))
    functional.cross_entropy(model(inputs), torch.tensor([0, 3, 3, 9])).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.abs().sum() > 0, key


def test_resnet18_keeps_integer_buffers():
    buffers = dict(build_model("resnet18", (3, 16, 16), 10, 0).named_buffers())
    counts = [value for key, value in buffers.items() if key.endswith("batches_tracked")]
    assert len(counts) == 20
    assert {value.dtype for value in counts} == {torch.int64}


def test_published_resnet18_quarters_the_image_before_its_blocks():
    model = build_model("resnet18-imagenet", (3, 64, 64), 10, 0).eval()
    inputs = torch.zeros(1, 3, 64, 64)
    assert model[:1](inputs).shape == (1, 64, 32, 32)
    assert model[:4](inputs).shape == (1, 64, 16, 16)
    assert isinstance(model[3], torch.nn.MaxPool2d)


@pytest.mark.parametrize(
    ("name", "activation", "dropout"),
    [
        ("lenet-b", "ReLU", []),
        ("lenet-b100", "ReLU", [0.6]),
        ("lenet-c", "LeakyReLU", []),
        ("lenet-m", "ReLU", []),
    ],
)
def test_what_stands_between_the_layers_of_the_lenets(name, activation, dropout):
    layers = list(build_model(name, (3, 32, 32), 10, 0))
    kinds = {type(layer).__name__ for layer in layers if not list(layer.parameters())}
    assert kinds - {"MaxPool2d", "Flatten", "Dropout"} == {activation}
    assert [layer.p for layer in layers if isinstance(layer, torch.nn.Dropout)] == dropout
    if dropout:
        assert isinstance(layers[-2], torch.nn.Dropout)


def test_hidden_layers_by_hand():
    """64-7-10, then 64-10, then 64-7-7-7-10."""
    for layers, expected in ((1, 65 * 7 + 80), (0, 650), (3, 65 * 7 + 2 * 56 + 80)):
        model = build_model("mlp", (64,), 10, 0, hidden_width=7, hidden_layers=layers)
        assert count_parameters(model) == expected


def test_mlp_without_hidden_layers_is_softmax_regression():
    flat, softmax = state("mlp", 5, hidden_layers=0), state("linear", 5)
    assert all(torch.equal(flat[key], softmax[key]) for key in softmax)


@pytest.mark.parametrize(("size", "after"), [(32, 4), (64, 8), (8, 1)])
def test_mobilenet_keeps_enough_pixels(size, after):
    model = build_model("mobilenet-v2", (3, size, size), 10, 0).eval()
    before_average = model[:-3]
    assert before_average(torch.zeros(1, 3, size, size)).shape == (1, 1280, after, after)


def test_mobilenet_adds_inputs_where_shapes_allow():
    """17 blocks; the first of each of 7 groups changes the shape."""
    blocks = [
        layer
        for layer in build_model("mobilenet-v2", (3, 32, 32), 10, 0)
        if hasattr(layer, "adds_input")
    ]
    assert (len(blocks), sum(block.adds_input for block in blocks)) == (17, 10)
    block = next(block for block in blocks if block.adds_input).eval()
    for parameter in block.parameters():
        torch.nn.init.zeros_(parameter)
    inputs = torch.randn(2, 24, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(block(inputs), inputs)


def test_hidden_width_sets_both_layers():
    # 64-7-7-10: 65 * 7 + 8 * 7 + 8 * 10.
    assert count_parameters(build_model("mlp", (64,), 10, 0, hidden_width=7)) == 591


@pytest.mark.parametrize(
    ("name", "input_shape", "options", "message"),
    [
        ("cnn", (1, 8, 8), {}, "at least 16 x 16 pixels, got 8 x 8"),
        ("cnn", (3, 32, 15), {}, "got 32 x 15"),
        ("cnn-deep", (3, 21, 32), {}, "cnn-deep needs images of at least 22 x 22"),
        ("cnn-shallow", (3, 5, 5), {}, "at least 6 x 6"),
        ("lenet-b", (3, 32, 15), {}, "lenet-b needs images of at least 16 x 16"),
        ("lenet-c", (3, 15, 32), {}, "lenet-c needs images of at least 16 x 16"),
        ("mobilenet-v2", (64,), {}, "model mobilenet-v2 needs images"),
        ("cnn", (784,), {}, r"model cnn needs images .* got inputs of shape \(784,\)"),
        ("resnet18", (8, 8), {}, "model resnet18 needs images"),
        ("mlp", (64,), {"hidden_width": 0}, "key hidden-width = 0"),
        ("mlp", (64,), {"hidden_width": 2.0}, "key hidden-width = 2.0"),
        ("mlp", (64,), {"depth": 3}, "model mlp has no option 'depth'.* hidden_width"),
        ("linear", (64,), {"hidden_width": 9}, "it takes none"),
        ("linear", (), {}, "expected sizes of at least 1"),
        ("linear", (3, 0), {}, "expected sizes of at least 1"),
        ("mpl", (64,), {}, "unknown model 'mpl'.*did you mean 'mlp'"),
        ("transformer", (64,), {}, f"known are {', '.join(MODELS)}$"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(name, input_shape, options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        build_model(name, input_shape, 10, 0, **options)
    assert "\n" not in str(caught.value)


def test_no_classes_are_refused():
    with pytest.raises(ConfigError, match="0 classes"):
        build_model("linear", (4,), 0, 0)


def test_keys_hold_the_model_and_every_model_key():
    shared = (*ModelSettings.KEYS, *DecompositionSettings.KEYS)
    keys = [*shared, *(key for spec in MODELS.values() for key in spec.settings.KEYS)]
    names = [key.name for key in keys]
    assert names[0] == "model"
    assert len(names) == len(set(names))
    assert keys[0].choices is MODELS


def test_infinite_entries_of_the_module_stay_where_they_are_asked_to():
    model = nn.Linear(1, 2, bias=False)
    model.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    zero = {"mask": np.float32([7.0, 0.0]), "weight": np.ones((2, 1), np.float32)}
    load_arrays(model, zero, keep_infinite=True)
    assert model.mask.tolist() == [7.0, -torch.inf]
    assert model.weight.tolist() == [[1.0], [1.0]]
    load_arrays(model, zero)
    assert model.mask.tolist() == [7.0, 0.0]
