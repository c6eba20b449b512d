"""Spaces of architectures: what can be searched, counted and sampled exactly, without torch."""

from vitsearch.spaces.base import (
    SPACES,
    Knob,
    Space,
    canonical,
    cost_of,
    decode,
    find_space,
    outside,
    patch_words,
    patches_of,
    sample,
    space_of,
    space_over,
    understand,
)
from vitsearch.spaces.region import Region

__all__ = [
    "SPACES",
    "Knob",
    "Region",
    "Space",
    "canonical",
    "cost_of",
    "decode",
    "find_space",
    "outside",
    "patch_words",
    "patches_of",
    "sample",
    "space_of",
    "space_over",
    "understand",
]
