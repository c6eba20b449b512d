"""Find the best vision transformer for a dataset and a budget, and see why it is the best.

    import vitsearch
    settings = vitsearch.sample("autoformer-tiny", limits=vitsearch.Limits(max_params=6_000_000))[0]
    vitsearch.cost_of(settings)         # exact parameters and MACs
    vitsearch.score(settings, "dss")    # training-free score
    vitsearch.build(settings)           # the network

The names below are the public API. They load when they are first used, so that importing this package is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Architecture": "vitsearch.architecture",
    "Geometry": "vitsearch.cost",
    "Limits": "vitsearch.cost",
    "PROXIES": "vitsearch.proxies",
    "SPACES": "vitsearch.spaces",
    "STRATEGIES": "vitsearch.search",
    "Study": "vitsearch.study",
    "Trial": "vitsearch.records",
    "VitsearchError": "vitsearch.errors",
    "build": "vitsearch.models",
    "cost_of": "vitsearch.spaces",
    "decode": "vitsearch.spaces",
    "export_timm": "vitsearch.export",
    "run_search": "vitsearch.study",
    "sample": "vitsearch.spaces",
    "score": "vitsearch.scoring",
}
__all__ = [*sorted(_HOMES), "__version__"]

if TYPE_CHECKING:
    from vitsearch.architecture import Architecture as Architecture
    from vitsearch.cost import Geometry as Geometry
    from vitsearch.cost import Limits as Limits
    from vitsearch.errors import VitsearchError as VitsearchError
    from vitsearch.export import export_timm as export_timm
    from vitsearch.models import build as build
    from vitsearch.proxies import PROXIES as PROXIES
    from vitsearch.records import Trial as Trial
    from vitsearch.scoring import score as score
    from vitsearch.search import STRATEGIES as STRATEGIES
    from vitsearch.spaces import SPACES as SPACES
    from vitsearch.spaces import cost_of as cost_of
    from vitsearch.spaces import decode as decode
    from vitsearch.spaces import sample as sample
    from vitsearch.study import Study as Study
    from vitsearch.study import run_search as run_search


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitsearch' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
