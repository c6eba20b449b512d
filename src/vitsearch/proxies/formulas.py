"""Formulas as proxies: `expr:TEXT`, `file:FOUND.json`, and the formulas that were discovered and are shipped."""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path

from vitsearch.architecture import brief
from vitsearch.errors import VitsearchError
from vitsearch.proxies.base import PROXIES, Proxy, Subject
from vitsearch.proxies.expression import Formula, parse_formula
from vitsearch.proxies.layers import score
from vitsearch.records import parse_json

PAPER = "Wei et al., Auto-Prox, AAAI 2024: the space of formulas"
SHIPPED = ("autoformer", "pit")


def _score(subject: Subject, *, formula: Formula) -> float:
    return score(formula, subject)


def as_proxy(name: str, formula: Formula, description: str) -> Proxy:
    return Proxy(
        name=name,
        score=partial(_score, formula=formula),
        paper=PAPER,
        description=description,
        needs_data=formula.needs_data,
        needs_labels=formula.needs_gradient,
        needs_gradient=formula.needs_gradient,
        formula=formula,
    )


@lru_cache(maxsize=4096)
def from_text(text: str) -> Proxy:
    """The proxy behind `expr:...`."""
    formula = parse_formula(text.removeprefix("expr:"))
    return as_proxy(text, formula, f"The formula {formula}")


def from_file(text: str) -> Proxy:
    """The proxy behind `file:...`: the formula in a JSON file, as `vitsearch discover` writes it."""
    formula = read_formula(Path(text.removeprefix("file:")))
    return as_proxy(text, formula, f"The formula {formula}")


def read_formula(path: Path) -> Formula:
    try:
        data = parse_json(path.read_bytes(), str(path))
    except (OSError, ValueError) as error:
        raise VitsearchError(f"cannot read {str(path)!r}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(data, dict) or not isinstance(data.get("formula"), str):
        raise VitsearchError(f"{path} must be an object with a `formula`, but got {brief(data)}")
    return parse_formula(data["formula"])


def _register_shipped() -> None:
    for name in SHIPPED:
        formula = read_formula(Path(__file__).parent / f"discovered_{name}.json")
        PROXIES.add(f"discovered-{name}", as_proxy(f"discovered-{name}", formula, f"Discovered here: {formula}."))


_register_shipped()
