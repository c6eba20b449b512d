"""Recipes: all about a training but the network, the data and the seed, as plain data with a name and a source."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from vitsearch.architecture import brief, check_whole
from vitsearch.data import Augmentation
from vitsearch.errors import VitsearchError
from vitsearch.registry import Registry, did_you_mean

Precision = Literal["float32", "bfloat16", "float16"]
Schedule = Literal["cosine", "constant"]
Unit = Literal["step", "epoch"]
MixMode = Literal["batch", "pair", "elem"]
Decay = Literal["matrices", "all-but-vectors", "everything"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """How to train. Rates are for the batch `rate_batch` where that is given, and scale with the batch in use."""

    source: str
    image_size: int = 224
    epochs: int = 300
    batch_size: int = 1024
    optimizer: str = "adamw"
    learning_rate: float = 5e-4
    rate_batch: int | None = 512
    """The rate in use is learning_rate * batch_size / rate_batch."""
    minimum_rate: float = 1e-5
    warmup_epochs: float = 5
    warmup_rate: float = 1e-6
    schedule: Schedule = "cosine"
    steps_of: Unit = "epoch"
    """How often the rate changes."""
    weight_decay: float = 0.05
    decayed: Decay = "matrices"
    """`matrices`: no vectors, tokens, or position tables; `all-but-vectors`: tokens and tables too."""
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    """These and `epsilon` are Adam's; an optimizer of another name has its own, unless other ones are given here."""
    epsilon: float = 1e-8
    clip: float | None = None
    """Largest norm of the gradient."""
    augmentation: Augmentation = field(default_factory=Augmentation)
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_switch: float = 0.5
    """How often CutMix where both are on."""
    mix_mode: MixMode = "batch"
    label_smoothing: float = 0.0
    drop_path: float = 0.0
    average: float | None = None
    """Decay of the moving average of the weights, which is what is evaluated and kept."""
    precision: Precision = "bfloat16"
    crop_percent: float = 0.875
    """Share of the image that evaluation sees."""

    def __post_init__(self) -> None:
        for name in ("image_size", "epochs", "batch_size"):
            check_whole(name, getattr(self, name))
        if self.rate_batch is not None:
            check_whole("rate_batch", self.rate_batch)
        for name in ("learning_rate", "epsilon"):
            _check_number(name, getattr(self, name), above=0.0)
        for name in ("minimum_rate", "warmup_epochs", "warmup_rate", "weight_decay", "mixup", "cutmix"):
            _check_number(name, getattr(self, name))
        if len(self.betas) != 2:
            raise VitsearchError(f"`betas` must be two numbers, but got {brief(self.betas)}")
        for name in ("mix_switch", "label_smoothing", "drop_path", "momentum"):
            _check_number(name, getattr(self, name), most=1.0)
        if self.label_smoothing == 1 or self.drop_path == 1:
            raise VitsearchError("`label_smoothing` and `drop_path` must be below 1, but got 1")
        if self.clip is not None:
            _check_number("clip", self.clip, above=0.0)
        if self.average is not None:
            _check_number("average", self.average, above=0.0, most=1.0)
        _check_number("crop_percent", self.crop_percent, above=0.0, most=1.0)
        choices = {"schedule": Schedule, "steps_of": Unit, "precision": Precision}
        choices |= {"mix_mode": MixMode, "decayed": Decay}
        for name, allowed in choices.items():
            if getattr(self, name) not in get_args(allowed):
                raise VitsearchError(
                    f"`{name}` must be one of {', '.join(get_args(allowed))}, but got {brief(getattr(self, name))}"
                )
        if self.warmup_epochs >= self.epochs and self.warmup_epochs > 0:
            raise VitsearchError(
                f"`warmup_epochs` must be less than `epochs`, but got {self.warmup_epochs} of {self.epochs}"
            )
        if self.mixing and self.batch_size % 2:
            raise VitsearchError(f"`batch_size` must be even where images are mixed, but got {self.batch_size}")

    @property
    def mixing(self) -> bool:
        return self.mixup > 0 or self.cutmix > 0

    @property
    def rate(self) -> float:
        """The highest learning rate."""
        return self.learning_rate * (self.batch_size / self.rate_batch if self.rate_batch else 1.0)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recipe:
        fields = dict(data)
        given: dict[str, Any] = fields["augmentation"]
        fields["betas"] = tuple(fields["betas"])
        fields["augmentation"] = Augmentation(**given)
        return cls(**fields)


def _check_number(name: str, value: object, *, above: float | None = None, most: float = math.inf) -> None:
    """Finite, at least 0 (or above a bound), at most `most`."""
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value <= most
    if not good or not (value > above if above is not None else value >= 0):  # type: ignore[operator]
        lowest = f"above {above:g}" if above is not None else "at least 0"
        highest = f" and at most {most:g}" if math.isfinite(most) else ""
        raise VitsearchError(f"`{name}` must be {lowest}{highest}, but got {brief(value)}")


def change(recipe: Recipe, changes: Mapping[str, str]) -> Recipe:
    """A recipe with some of its fields, or `augmentation.` fields, set from texts.

    Where epochs or batch become too few for the warm-up, the warm-up shortens in proportion.
    """
    own: dict[str, Any] = {}
    of_augmentation: dict[str, Any] = {}
    for name, text in changes.items():
        if name.startswith("augmentation."):
            part = name.removeprefix("augmentation.")
            of_augmentation[part] = _parsed(recipe.augmentation, part, text, name)
        else:
            own[name] = _parsed(recipe, name, text, name)
    if of_augmentation:
        own["augmentation"] = dataclasses.replace(recipe.augmentation, **of_augmentation)
    if "epochs" in own and "warmup_epochs" not in own and isinstance(own["epochs"], int):
        own["warmup_epochs"] = min(recipe.warmup_epochs, recipe.warmup_epochs * own["epochs"] / recipe.epochs)
    return dataclasses.replace(recipe, **own)


def _parsed(owner: Any, name: str, text: str, shown: str) -> Any:
    """The text as a value of the kind that the field has."""
    fields = {
        one.name: str(one.type) for one in dataclasses.fields(owner) if one.name not in ("source", "augmentation")
    }
    if name not in fields:
        raise VitsearchError(f"no recipe field named {shown!r}.{did_you_mean(name, list(fields))}")
    kind = fields[name]
    if "None" in kind and text == "none":
        return None
    try:
        if kind.startswith("tuple"):
            return tuple(float(part) for part in text.split(","))
        if kind.startswith("int"):
            return int(text)
        return float(text) if kind.startswith("float") else text
    except ValueError:
        number = "a whole number" if kind.startswith("int") else "a number"
        wanted = "numbers with commas" if kind.startswith("tuple") else number
        raise VitsearchError(f"`{shown}` must be {wanted}, but got {text!r}") from None


RECIPES: Registry[Recipe] = Registry("recipe", "vitsearch.training")
