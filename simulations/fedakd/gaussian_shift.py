"""Theorem 2.2 of FedAKD's paper against the divergence that it approximates.

T. Yu et al., arXiv:2507.08617, equation 1: the divergence of a client's fitted Gaussian
N(mu + delta_mu, Sigma + delta_Sigma), from A samples, to the global N(mu, Sigma) is about

    1/4 |S d S|_F^2 - 1/2 tr((d S)^3) + 1/2 m' S (I - d S) m + M (M + 3) / 4 A

with d = delta_Sigma, m = delta_mu, S = Sigma^-1 and M dimensions. The printed form is right
only near Sigma = I and to second order. The correct expansion is

    1/4 tr((d S)^2) - 1/6 tr((d S)^3) + 1/2 m' S m + M (M + 3) / 4 A

where the term in m is exact. ``trace fix`` is the printed form with a corrected first term.

The last term, for the number of samples, is the limit of many samples. For a maximum
likelihood fit of A samples of the global Gaussian itself the mean divergence is known:
M/2 log(A/2) - 1/2 sum_i psi((A - i) / 2), i = 1..M, from the fit to the truth, and larger
the other way round.
"""

from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import digamma

from fedsuite.cli import main
from fedsuite.core.rng import numpy_stream
from fedsuite.experiment.command_options import OutputOption, OverwriteOption
from fedsuite.results.analysis_files import Cell, Table
from fedsuite.results.plots import LINE_STYLES, PALETTE, dress
from simulations.figures import DrawnOutput, SeedOption, panels

Array = NDArray[np.float64]

SCALES = (0.4, 0.2, 0.1, 0.05)
"""Factors on delta_mu and delta_Sigma."""

SAMPLES = (20, 50, 100, 200, 400, 1000, 3000)
"""Numbers of samples to fit a Gaussian to."""


class Shift(NamedTuple):
    """Sigma (M, M) of a Gaussian, delta_mu (M,) and the symmetric delta_Sigma (M, M)."""

    covariance: Array
    mean_shift: Array
    covariance_shift: Array

    def scaled(self, factor: float) -> "Shift":
        """Return the shift times a factor."""
        moved = factor * self.mean_shift, factor * self.covariance_shift
        return Shift(self.covariance, *moved)


class Line(NamedTuple):
    """The fit a / n + b of divergences against numbers of samples."""

    a: float
    b: float

    def at(self, samples: Array) -> Array:
        """Return the fit's values."""
        return self.a / samples + self.b


def gaussian_kl(
    mean: Array, covariance: Array, mean_0: Array, covariance_0: Array
) -> float:
    """Return KL(N(mean, covariance) || N(mean_0, covariance_0)) in nats."""
    inverse = np.linalg.inv(covariance_0)
    ratio = inverse @ covariance
    difference = mean - mean_0
    sign, log_determinant = np.linalg.slogdet(ratio)
    if sign <= 0:
        raise ValueError("a covariance is not positive definite")
    quadratic = float(difference @ inverse @ difference)
    return 0.5 * (float(np.trace(ratio)) - len(mean) + quadratic - float(log_determinant))


def exact_shift(shift: Shift) -> float:
    """Return the exact divergence, without the term in A."""
    origin = np.zeros(len(shift.mean_shift))
    moved = shift.covariance + shift.covariance_shift
    return gaussian_kl(shift.mean_shift, moved, origin, shift.covariance)


def printed_shift(shift: Shift) -> float:
    """Return equation 1 as printed, without the term in A."""
    inverse = np.linalg.inv(shift.covariance)
    frobenius = float(np.sum((inverse @ shift.covariance_shift @ inverse) ** 2))
    return 0.25 * frobenius + _printed_rest(shift)


def trace_fixed_shift(shift: Shift) -> float:
    """Return equation 1 with tr((d S)^2) in place of the Frobenius norm."""
    ratio = shift.covariance_shift @ np.linalg.inv(shift.covariance)
    return 0.25 * float(np.trace(ratio @ ratio)) + _printed_rest(shift)


def corrected_shift(shift: Shift) -> float:
    """Return the expansion to third order, without the term in A."""
    inverse = np.linalg.inv(shift.covariance)
    ratio = shift.covariance_shift @ inverse
    square = ratio @ ratio
    second, third = float(np.trace(square)), float(np.trace(square @ ratio))
    mean_term = float(shift.mean_shift @ inverse @ shift.mean_shift)
    return second / 4 - third / 6 + mean_term / 2


def _printed_rest(shift: Shift) -> float:
    inverse = np.linalg.inv(shift.covariance)
    ratio = shift.covariance_shift @ inverse
    third = float(np.trace(ratio @ ratio @ ratio))
    bent = inverse @ (np.eye(len(ratio)) - ratio)
    return -0.5 * third + 0.5 * float(shift.mean_shift @ bent @ shift.mean_shift)


EXPANSIONS = {
    "exact": exact_shift,
    "as printed": printed_shift,
    "trace fix": trace_fixed_shift,
    "corrected": corrected_shift,
}
"""Divergences by a shift, by the tables' names."""


def law_of_samples(dimensions: int, samples: int, constant: int = 3) -> float:
    """Return M (M + constant) / 4 A; 3 is equation 1's, 4 that of its appendix."""
    return dimensions * (dimensions + constant) / (4 * samples)


def expected_fit_kl(dimensions: int, samples: int) -> tuple[float, float]:
    """Return the exact mean divergences of a fit of A > M + 2 samples.

    The first is from the fit to the truth, the second from the truth to the fit.
    """
    if samples <= dimensions + 2:
        raise ValueError(
            f"{samples} samples in {dimensions} dimensions: expected more than "
            f"{dimensions + 2}"
        )
    digammas = digamma((samples - np.arange(1, dimensions + 1)) / 2)
    log_ratio = float(digammas.sum()) - dimensions * float(np.log(samples / 2))
    spread = dimensions * (samples + 1) / (samples - dimensions - 2)
    return -log_ratio / 2, (spread - dimensions + log_ratio) / 2


def simulated_fit_kl(
    dimensions: int, samples: int, draws: int, seed: int
) -> tuple[float, float]:
    """Return :func:`expected_fit_kl` as means over random fits.

    The truth is the standard Gaussian, as the divergence is the same for all.
    """
    stream = numpy_stream(seed, "gaussian-fit", samples, dimensions)
    origin, identity = np.zeros(dimensions), np.eye(dimensions)
    divergences = []
    for _ in range(draws):
        drawn = stream.standard_normal((samples, dimensions))
        mean = drawn.mean(axis=0)
        covariance = (drawn - mean).T @ (drawn - mean) / samples
        to_truth = gaussian_kl(mean, covariance, origin, identity)
        divergences.append((to_truth, gaussian_kl(origin, identity, mean, covariance)))
    forward, backward = np.mean(divergences, axis=0)
    return float(forward), float(backward)


def fit_inverse(samples: Array, divergences: Array) -> Line:
    """Return the least-squares fit of a / n + b, as figure 4 of the paper has it."""
    design = np.stack([1 / samples, np.ones(len(samples))], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, divergences, rcond=None)
    return Line(float(a), float(b))


def random_shift(dimensions: int, seed: int) -> Shift:
    """Return a shift of size 1 from a Gaussian whose covariance is far from I."""
    stream = numpy_stream(seed, "gaussian-shift")
    basis = np.linalg.qr(stream.standard_normal((dimensions, dimensions)))[0]
    spectrum = np.geomspace(0.5, 4.0, dimensions)
    covariance = (basis * spectrum) @ basis.T
    raw = stream.standard_normal((dimensions, dimensions))
    # Eigenvalues of d S of at most 1: the covariance stays positive at all scales.
    root = (basis * np.sqrt(spectrum)) @ basis.T
    symmetric = (raw + raw.T) / 2
    symmetric /= np.abs(np.linalg.eigvalsh(symmetric)).max()
    mean_shift = 0.5 * stream.standard_normal(dimensions)
    return Shift(covariance, mean_shift, root @ symmetric @ root)


def command(
    output: OutputOption = Path("analysis"),
    dimensions: Annotated[int, typer.Option(min=1, help="Dimensions M.")] = 5,
    draws: Annotated[int, typer.Option(min=2, help="Random fits of a sample size.")] = 400,
    seed: SeedOption = 0,
    overwrite: OverwriteOption = False,
) -> None:
    """Compare the theorem, as printed and corrected, with what it approximates."""
    files = DrawnOutput.claim(output, "gaussian_shift", overwrite=overwrite)
    shift = random_shift(dimensions, seed)
    sizes = [samples for samples in SAMPLES if samples > dimensions + 2]
    fits = {n: simulated_fit_kl(dimensions, n, draws, seed) for n in sizes}
    rows: list[list[Cell]] = [
        ["size of the shift", scale, *(each(moved) for each in EXPANSIONS.values()), None]
        for scale, moved in ((scale, shift.scaled(scale)) for scale in SCALES)
    ]
    for way, name in enumerate(("samples, fit to truth", "samples, truth to fit")):
        rows += [
            [
                *(name, n, expected_fit_kl(dimensions, n)[way]),
                *(law_of_samples(dimensions, n), None, None, fits[n][way]),
            ]
            for n in sizes
        ]
    columns = ("by", "value", *EXPANSIONS, "simulated")
    line = fit_inverse(np.array(sizes, float), np.array([fits[n][0] for n in sizes]))
    note = (
        f"Divergences in nats, {dimensions} dimensions. By a shift: equation 1 as printed, "
        "with its first term put right, and the expansion to third order. By samples: the "
        f"exact mean, M (M + 3) / 4 A as printed, and the mean of {draws} random fits. "
        f"Fit a / n + b to the simulated ones from the fit to the truth: a = {line.a:.4g}, "
        f"b = {line.b:.3g}; theory a = {dimensions * (dimensions + 3) / 4:g}, b = 0."
    )
    files.draw(Table(columns, rows, note), shift_figure(shift, fits, line))


def shift_figure(shift: Shift, fits: dict[int, tuple[float, float]], line: Line) -> Figure:
    """Draw the expansions against the size of the shift, and the law against samples."""
    figure, (left, right) = panels(2, 2, 5.0, 4.2)
    scales = np.linspace(0.02, max(SCALES), 60)
    for index, (name, expansion) in enumerate(EXPANSIONS.items()):
        values = [expansion(shift.scaled(float(scale))) for scale in scales]
        style = LINE_STYLES[index % len(LINE_STYLES)]
        left.plot(scales, values, color=PALETTE[index], linestyle=style, label=name)
    dress(left, "Divergence by a shift", "size of the shift", "divergence (nats)")
    left.legend(frameon=False)
    dimensions, sizes = len(shift.mean_shift), np.array(sorted(fits), dtype=np.float64)
    for way, name in enumerate(("fit to truth", "truth to fit")):
        colour = PALETTE[way]
        exact = [expected_fit_kl(dimensions, int(n))[way] for n in sizes]
        right.plot(sizes, exact, color=colour, label=f"{name}, exact")
        simulated = [fits[int(n)][way] for n in sizes]
        right.plot(sizes, simulated, "o", color=colour, label=f"{name}, simulated")
    law = [law_of_samples(dimensions, int(n)) for n in sizes]
    right.plot(sizes, law, color="black", linestyle="--", label="M (M + 3) / 4 A")
    fitted = f"{line.a:.3g} / A {line.b:+.2g}"
    # A logarithmic axis cannot show values below 0, which a fit may have.
    shown = np.where(line.at(sizes) > 0, line.at(sizes), np.nan)
    right.plot(sizes, shown, color=PALETTE[2], linestyle=":", label=fitted)
    right.set_xscale("log")
    right.set_yscale("log")
    dress(right, "Divergence by few samples", "samples A", "divergence (nats)")
    right.legend(frameon=False)
    return figure


if __name__ == "__main__":
    main(lambda: typer.run(command))
