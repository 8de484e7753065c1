"""One factored convolution against dense ones, and against numbers made by hand."""

import warnings

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from fedsuite.models.decomposed import DecomposedConv2d, decompose, recompose

CLOSE = {"rtol": 0.0, "atol": 1e-10}
EVERY = {"decompose_stem": True, "decompose_1x1": True}


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def layer(out=6, channels=4, count=5, kernel=3, bias=True, **options) -> DecomposedConv2d:
    return DecomposedConv2d(
        noise(count, kernel, kernel, seed=1),
        noise(out, channels // options.get("groups", 1), count, seed=2),
        noise(out, seed=3) if bias else None,
        **options,
    )


def filters_by_hand(conv: DecomposedConv2d) -> torch.Tensor:
    out, channels, count = conv.coefficients.shape
    filters = torch.zeros(out, channels, *conv.atoms.shape[1:], dtype=torch.float64)
    for o in range(out):
        for i in range(channels):
            for q in range(count):
                filters[o, i] += (
                    conv.coefficients[o, i, q].detach() * conv.atoms[q].detach()
                )
    return filters


def outputs_and_gradients(conv, forward, inputs):
    inputs = inputs.clone().requires_grad_()
    output = forward(inputs)
    weights = torch.arange(output.numel(), dtype=torch.float64).reshape(output.shape).cos()
    wanted = [conv.atoms, conv.coefficients, inputs]
    wanted += [conv.bias] if conv.bias is not None else []
    return [output, *torch.autograd.grad((output * weights).sum(), wanted)]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_forward_is_the_dense_convolution(stride, padding, kernel, bias, groups):
    conv = layer(
        kernel=kernel,
        bias=bias,
        stride=(stride, stride),
        padding=(padding, padding),
        groups=groups,
    )
    inputs = noise(2, 4, 9, 8, seed=4)
    dense = functional.conv2d(
        inputs, filters_by_hand(conv), conv.bias, stride, padding, groups=groups
    )
    torch.testing.assert_close(conv(inputs), dense, **CLOSE)


def test_gradients_are_the_equations():
    """With G the gradient of the filters: <G_ij, D_q>, and the sum of a_ijq G_ij."""
    conv = layer()
    inputs = noise(2, 4, 7, 7, seed=4)
    _, atoms, coefficients, _, _ = outputs_and_gradients(conv, conv.forward, inputs)
    filters = filters_by_hand(conv).requires_grad_()
    output = functional.conv2d(inputs, filters, conv.bias)
    weights = torch.arange(output.numel(), dtype=torch.float64).reshape(output.shape).cos()
    (slope,) = torch.autograd.grad((output * weights).sum(), [filters])
    for q in range(5):
        expected = (slope * conv.atoms[q]).sum(dim=(2, 3))
        torch.testing.assert_close(coefficients[:, :, q], expected, **CLOSE)
        expected = (conv.coefficients[:, :, q, None, None] * slope).sum(dim=(0, 1))
        torch.testing.assert_close(atoms[q], expected, **CLOSE)


def test_order_of_the_indices():
    """Output 2 is input 1 correlated with atom 0; all else is the bias."""
    atoms = noise(2, 3, 3, seed=1)
    coefficients = torch.zeros(4, 3, 2, dtype=torch.float64)
    coefficients[2, 1, 0] = 1.0
    bias = noise(4, seed=3)
    inputs = noise(1, 3, 5, 5, seed=4)
    output = DecomposedConv2d(atoms, coefficients, bias)(inputs)[0]
    for channel in (0, 1, 3):
        assert (output[channel] == bias[channel]).all()
    for y in range(3):
        for x in range(3):
            patch = inputs[0, 1, y : y + 3, x : x + 3]
            expected = (patch * atoms[0]).sum() + bias[2]
            torch.testing.assert_close(output[2, y, x], expected, **CLOSE)


@st.composite
def convolutions(draw):
    """Draw any Conv2d that takes 2 x 4 x 9 x 8 inputs, float64."""
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    padding = draw(st.sampled_from(["same", "valid"]) | st.tuples(*[st.integers(0, 2)] * 2))
    stride = (1, 1) if padding == "same" else draw(st.tuples(*[st.integers(1, 3)] * 2))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw(st.integers(0, 3)))
        return nn.Conv2d(
            4,
            draw(st.sampled_from([2, 6])),
            kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=draw(st.sampled_from([1, 2])),
            bias=draw(st.booleans()),
            padding_mode=mode,
            dtype=torch.float64,
        )


@settings(max_examples=150)
@given(conv=convolutions(), spare=st.integers(0, 3))
def test_any_convolution_keeps_its_function_both_ways(conv, spare):
    inputs = noise(2, 4, 9, 8, seed=4)
    count = conv.kernel_size[0] * conv.kernel_size[1] + spare
    factored = decompose(conv, count, **EVERY)
    dense = recompose(factored)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch's, of 'same' and even kernels
        expected = conv(inputs)
        for forward in (factored, dense):
            torch.testing.assert_close(forward(inputs), expected, **CLOSE)
    for name in ("stride", "padding", "dilation", "groups", "padding_mode", "kernel_size"):
        assert getattr(dense, name) == getattr(conv, name), name
    assert repr(dense) == repr(conv)
    assert dense.state_dict().keys() == conv.state_dict().keys()


@settings(max_examples=30)
@given(seed=st.integers(0, 1000), count=st.integers(1, 12))
def test_change_of_basis_changes_no_filter(seed, count):
    """Coefficients times Q, atoms times its inverse: the filters are the same."""
    conv = layer(count=count)
    matrix = noise(count, count, seed=seed) + 3 * torch.eye(count, dtype=torch.float64)
    assume(torch.linalg.cond(matrix) < 1e3)
    atoms = torch.linalg.solve(matrix, conv.atoms.detach().flatten(1)).view_as(conv.atoms)
    other = DecomposedConv2d(atoms, conv.coefficients.detach() @ matrix)
    torch.testing.assert_close(other.filters(), conv.filters(), rtol=0.0, atol=1e-9)


def test_other_numbers_of_atoms_and_no_batch():
    assert layer(count=1)(noise(4, 5, 5)).shape == (6, 3, 3)


def test_what_is_printed():
    assert repr(layer(kernel=5, padding=(2, 2))) == (
        "DecomposedConv2d(4, 6, kernel_size=(5, 5), atoms=5, stride=(1, 1), "
        "padding=(2, 2), dilation=(1, 1), groups=1, padding_mode=zeros)"
    )
