"""Plain supervision: a Gaussian process from settings to the accuracy that a benchmark table would show.

Accuracies are not spread evenly: a table has a few bad networks far below many good ones. The process therefore works
on normal scores, the quantiles of the normal distribution at the ranks of the accuracies, and answers in percent again
(Snelson et al., Warped Gaussian Processes, NeurIPS 2003). Its kernel is a linear trend plus smooth deviations plus
noise. A file holds settings, accuracies and four hyperparameters; reading it computes the same process again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vitsearch.architecture import Settings, brief
from vitsearch.cost import Geometry
from vitsearch.errors import BadSettings, VitsearchError
from vitsearch.records import parse_json, write_atomically
from vitsearch.spaces import SPACES, Space, canonical, cost_of, decode, space_of, space_over

if TYPE_CHECKING:
    from sklearn.gaussian_process import GaussianProcessRegressor

Array: TypeAlias = NDArray[np.float64]

FORMAT = 1  # of the file, and of `features`: a change there makes hyperparameters of older files worthless
FEWEST = 10
KNOTS = 8  # of the way from percent to normal scores
NODES = 32  # of the quadrature that carries a normal distribution over to percent


class Prediction(NamedTuple):
    """Mean and standard deviation of what would be measured, in percent, noise of measuring included."""

    mean: Array
    std: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperparameters:
    """Variances of the trend, of the deviations and of the noise, and the length over which deviations change."""

    trend: float
    smooth: float
    length: float
    noise: float

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e9:
                raise VitsearchError(f"`{name}` must be a positive number, but got {brief(value)}")


START = Hyperparameters(trend=0.1, smooth=1.0, length=3.0, noise=0.1)
BOUNDS = {"trend": (1e-6, 1e3), "smooth": (1e-6, 1e3), "length": (1.0, 100.0), "noise": (1e-3, 2.0)}


def features(space: Space, settings: Sequence[Mapping[str, Any]], geometry: Geometry) -> tuple[Array, Array]:
    """Numbers of a fixed length for the networks of a space: summaries [n, s], and layer by layer [n, l].

    Summaries are knobs (the mean, where a knob is for each block), depth, width, parameters and MACs, as logarithms.
    Layers are the values of the knobs for each block, nan where there is none.
    """
    stages = [len(stage.blocks) for stage in space.envelope().stages]
    summaries: list[list[float]] = []
    layers: list[list[float]] = []
    for one in settings:
        architecture = decode(one)
        cost = cost_of(architecture, geometry)
        total: list[float] = [cost.params, cost.macs, architecture.depth, architecture.mean_width]
        by_layer: list[float] = []
        for knob in space.knobs:
            values = one[knob.name] if isinstance(one[knob.name], (list, tuple)) else [one[knob.name]]
            if knob.per in ("network", "stage"):
                total += values
                continue
            groups = values if knob.per == "stage block" else [values]
            sizes = stages if knob.per == "stage block" else [sum(stages)]
            there = [value for group in groups for value in group if value is not None]
            total.append(sum(there) / len(there) if there else 0.0)
            for group, size in zip(groups, sizes, strict=True):
                if len(group) > size:
                    raise BadSettings(f"{space.name} has up to {size} blocks, but got {len(group)}")
                by_layer += [float("nan") if value is None else value for value in group]
                by_layer += [float("nan")] * (size - len(group))
        summaries.append(total)
        layers.append(by_layer)
    return np.log1p(np.array(summaries, dtype=np.float64)), np.array(layers, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Mean 0 and deviation 1 over the networks it was made of; all layers together weigh as much as a few summaries."""

    summaries: tuple[Array, Array]
    layers: tuple[Array, Array]

    @classmethod
    def of(cls, summaries: Array, layers: Array) -> Scaling:
        return cls(summaries=_moments(summaries), layers=_moments(layers))

    def __call__(self, summaries: Array, layers: Array) -> Array:
        by_layer = np.nan_to_num(_scaled(layers, self.layers), nan=0.0)  # a layer that is not there says nothing
        return np.hstack([_scaled(summaries, self.summaries), by_layer / max(1.0, (layers.shape[1] / 2) ** 0.5)])


def _moments(numbers: Array) -> tuple[Array, Array]:
    there = ~np.isnan(numbers)
    count = np.maximum(there.sum(0), 1)
    mean = np.where(there, numbers, 0.0).sum(0) / count
    deviation = np.sqrt((np.where(there, numbers - mean, 0.0) ** 2).sum(0) / count)
    return mean, deviation


def _scaled(numbers: Array, moments: tuple[Array, Array]) -> Array:
    mean, deviation = moments
    varies = deviation > 1e-9 * (1 + abs(mean))
    scaled: Array = np.where(varies, (numbers - mean) / np.where(varies, deviation, 1.0), 0.0 * numbers)
    return scaled


@dataclass(frozen=True, kw_only=True)
class Warp:
    """Accuracies to normal scores and back: straight lines between a few knots, and on beyond the ends."""

    values: Array
    scores: Array
    slope: float
    """Percent for each unit of normal score beyond the ends."""

    @classmethod
    def of(cls, accuracies: Array) -> Warp:
        from scipy.stats import norm, rankdata

        if len(np.unique(accuracies)) < 2:
            raise VitsearchError("accuracies must differ for there to be something to predict, but all are equal")
        ranked = norm.ppf((rankdata(accuracies) - 0.5) / len(accuracies))
        knots = np.linspace(ranked.min(), ranked.max(), KNOTS)
        near = np.exp(-(((knots[:, None] - ranked) / (knots[1] - knots[0])) ** 2))  # single networks are noise
        values = near @ accuracies / near.sum(1)
        values[0], values[-1] = accuracies.min(), accuracies.max()
        rising = np.maximum.accumulate(values) + 1e-9 * np.arange(KNOTS)
        low, high = np.quantile(accuracies, [0.25, 0.75])
        return cls(values=rising, scores=knots, slope=float(high - low) / 1.349)  # 1.349: quartiles of a normal

    def forward(self, accuracies: Array) -> Array:
        scores: Array = np.interp(accuracies, self.values, self.scores)
        return scores

    def back(self, scores: Array) -> Array:
        beyond = np.minimum(scores - self.scores[0], 0.0) + np.maximum(scores - self.scores[-1], 0.0)
        percent: Array = np.clip(np.interp(scores, self.scores, self.values) + self.slope * beyond, 0.0, 100.0)
        return percent

    def distribution(self, mean: Array, std: Array) -> Prediction:
        """Of the accuracy, where its score is normal: Gauss-Hermite quadrature."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        percent = self.back(mean[:, None] + std[:, None] * nodes)
        expected = percent @ weights / weights.sum()
        spread = (percent - expected[:, None]) ** 2 @ weights / weights.sum()
        return Prediction(expected, np.sqrt(spread))


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """Trained when it is first asked; `networks` are canonical settings of one space over one size of patches."""

    space: Space
    geometry: Geometry
    dataset: str
    networks: tuple[Settings, ...]
    accuracies: tuple[float, ...]
    hyperparameters: Hyperparameters
    benchmarks: tuple[Mapping[str, str], ...] = ()
    """Name and sha256 of each file that the accuracies come from."""

    def __post_init__(self) -> None:
        if len(self.networks) < FEWEST or len(self.networks) != len(self.accuracies):
            got = f"{len(self.networks)} and {len(self.accuracies)}"
            raise VitsearchError(f"there must be at least {FEWEST} networks with an accuracy each, but got {got}")
        for one in self.networks:
            if (reason := self.space.why_not(one)) is not None:
                raise BadSettings(f"all networks of a predictor must be of one space: {reason}")

    def predict(self, settings: Sequence[Mapping[str, Any]]) -> Prediction:
        """Of networks of this space; others are an error."""
        for one in settings:
            if (reason := self.space.why_not(one)) is not None:
                raise BadSettings(f"a predictor of {self.space.name} needs networks of it: {reason}")
        if not settings:
            return Prediction(np.zeros(0), np.zeros(0))
        process, scaling, warp = self._trained
        mean, std = process.predict(scaling(*features(self.space, settings, self.geometry)), return_std=True)
        return warp.distribution(mean, std)

    @cached_property
    def _trained(self) -> tuple[GaussianProcessRegressor, Scaling, Warp]:
        return _train(self, search=False)

    def save(self, path: str | Path) -> None:
        data = {
            "format": FORMAT,
            "kind": "predictor",
            "space": self.space.name,
            "fixed": self.space.fixed(),
            **dataclasses.asdict(self.geometry),
            "dataset": self.dataset,
            "benchmarks": [dict(benchmark) for benchmark in self.benchmarks],
            "hyperparameters": dataclasses.asdict(self.hyperparameters),
            "networks": list(self.networks),
            "accuracies": list(self.accuracies),
        }
        write_atomically(Path(path), json.dumps(data, allow_nan=False) + "\n")


def fit(
    networks: Sequence[Mapping[str, Any]],
    accuracies: Sequence[float],
    *,
    geometry: Geometry,
    dataset: str = "",
    benchmarks: Sequence[Mapping[str, str]] = (),
) -> Predictor:
    """Find the hyperparameters of the highest marginal likelihood; accuracies are in percent."""
    spelled = tuple(canonical(one) for one in networks)
    if not spelled:
        raise VitsearchError(f"there must be at least {FEWEST} networks with an accuracy each, but got none")
    own = space_of(spelled[0])
    start = Predictor(
        space=own if spelled[0] in own else space_over(spelled[0]),
        geometry=geometry,
        dataset=dataset,
        networks=spelled,
        accuracies=tuple(float(accuracy) for accuracy in accuracies),
        hyperparameters=START,
        benchmarks=tuple(benchmarks),
    )
    process, _, _ = _train(start, search=True)
    names = ("trend", "smooth", "length", "noise")  # the order of the kernel's parts
    found = dict(zip(names, np.exp(process.kernel_.theta).tolist(), strict=True))
    return dataclasses.replace(start, hyperparameters=Hyperparameters(**found))


def _train(predictor: Predictor, search: bool) -> tuple[GaussianProcessRegressor, Scaling, Warp]:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor

    inputs = features(predictor.space, predictor.networks, predictor.geometry)
    scaling, percent = Scaling.of(*inputs), np.array(predictor.accuracies, dtype=np.float64)
    warp = Warp.of(percent)
    optimizer = "fmin_l_bfgs_b" if search else None
    process = GaussianProcessRegressor(_kernel(predictor.hyperparameters), alpha=1e-10, optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a variance at its lower end: that part is not needed
        process.fit(scaling(*inputs), warp.forward(percent))
    return process, scaling, warp


def _kernel(values: Hyperparameters) -> Any:
    """trend (1 + x . x') + smooth exp(-|x - x'|^2 / (2 length^2)) + noise [x is x']."""
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

    trend = ConstantKernel(values.trend, BOUNDS["trend"]) * DotProduct(1.0, "fixed")
    smooth = ConstantKernel(values.smooth, BOUNDS["smooth"]) * RBF(values.length, BOUNDS["length"])
    return trend + smooth + WhiteKernel(values.noise, BOUNDS["noise"])


def read_predictor(path: str | Path) -> Predictor:
    """The inverse of `Predictor.save`; whatever is wrong with the file is one line."""
    try:
        data = parse_json(Path(path).read_bytes(), str(path))
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or error
        raise VitsearchError(f"`predictor` must be a file that can be read, but got {str(path)!r}: {reason}") from None
    if not isinstance(data, dict) or (data.get("format"), data.get("kind")) != (FORMAT, "predictor"):
        raise VitsearchError(f"{path} must have format {FORMAT} and kind 'predictor', as `vitsearch bench fit` writes")
    try:
        found = Predictor(
            space=SPACES[data["space"]].with_fixed(data["fixed"]),
            geometry=Geometry(**{name: data[name] for name in ("image_size", "classes", "channels")}),
            dataset=str(data["dataset"]),
            networks=tuple(canonical(one) for one in data["networks"]),
            accuracies=tuple(float(accuracy) for accuracy in data["accuracies"]),
            hyperparameters=Hyperparameters(**data["hyperparameters"]),
            benchmarks=tuple(dict(benchmark) for benchmark in data["benchmarks"]),
        )
        _ = found._trained
    except (KeyError, TypeError, ValueError, AttributeError, VitsearchError) as error:
        raise VitsearchError(f"{path} is broken: {type(error).__name__}: {error}") from None
    return found


def digest_of_file(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
