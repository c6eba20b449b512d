"""The card of an exported network: what it is, what it was trained on and how, what it costs and reaches.

It says what was recorded and nothing else. The part between the dashes is what the Hugging Face hub reads.
"""

from __future__ import annotations

import json
import platform
import shlex
from collections.abc import Iterable
from typing import Any

import timm
import torch

from vitsearch import __version__
from vitsearch.cost import Cost, architecture_cost
from vitsearch.export.handover import Handover
from vitsearch.export.onnx_file import INPUT, ONNX
from vitsearch.export.single_file import MODULE
from vitsearch.models import VisionNetwork
from vitsearch.models.folder import class_names
from vitsearch.proxies import PROXIES, Subject
from vitsearch.training.plan import TrainingPlan
from vitsearch.training.recipe import Recipe
from vitsearch.training.repeat import recipe_name, training_words

CARD = "README.md"
NAMED = 20  # classes that the card names
WEIGHTS_SAID = {
    "initial": "**Not trained.** The weights are the initial ones of seed {seed}: train it before you use it.",
    "inherited": "**Not trained on its own.** The weights are cut from the supernet `{supernet}`.",
    "trained": "Trained on `{data}`.",
}
USE = {
    "timm": (
        "python",
        'import timm, vitsearch.models\n\nnetwork = timm.create_model("local-dir:FOLDER", pretrained=True).eval()',
    ),
    "foreign": ("python", 'import timm\n\nnetwork = timm.create_model("local-dir:FOLDER", pretrained=True).eval()'),
    "onnx": (
        "python",
        f'import onnxruntime\n\nsession = onnxruntime.InferenceSession("{ONNX}")\n'
        f'(logits,) = session.run(None, {{"{INPUT}": images}})  # float32 [any batch, CHANNELS, SIDE, SIDE]',
    ),
    "torch": (
        "python",
        f"import model  # {MODULE}; needs torch and safetensors, nothing else\n\nnetwork = model.load()",
    ),
}


def model_card(handover: Handover, format: str, difference: float, command: str | None = None) -> str:
    about = handover.config.get("vitsearch") or {}
    weights = str(about.get("weights", "trained"))
    name = handover.settings["space"] if handover.settings else handover.config["architecture"]
    said = WEIGHTS_SAID.get(weights, WEIGHTS_SAID["trained"]).format_map(
        {key: _plain(about.get(key, "data that was not recorded")) for key in ("seed", "supernet", "data")}
    )
    parts = [_front_matter(handover, str(name)), f"# {_plain(name)}", said]
    parts += [_table(_facts(handover) | {"largest difference after export": f"{difference:.1e}"})]
    parts += ["## Use", _code(*_use(handover, format)), _preprocessing(handover)]
    if handover.settings is not None:
        parts += ["## Settings", _code("json", json.dumps(handover.settings))]
    if handover.plan is not None:
        parts += ["## Recipe", _table(_recipe(handover.plan.recipe)), "## Training", *_training(handover.plan)]
        parts += [_table({key: value for key, value in handover.environment.items() if value != []})]
    parts += ["## Export", *([_code("sh", command)] if command else []), _versions()]
    return "\n\n".join(parts) + "\n"


def size_of(handover: Handover) -> Cost:
    """Exact, from the blueprint; counted, for a network of timm's own."""
    network, geometry = handover.network, handover.geometry
    if isinstance(network, VisionNetwork):
        return architecture_cost(network.architecture, geometry)
    subject = Subject(name="network", network=lambda: network, batch=_no_batch, geometry=geometry)
    return Cost(sum(p.numel() for p in network.parameters()), int(PROXIES["macs"].score(subject)))


def _no_batch() -> Any:
    raise AssertionError("a count needs no images")


def _facts(handover: Handover) -> dict[str, Any]:
    cost, geometry, plan, result = size_of(handover), handover.geometry, handover.plan, handover.result
    recorded = handover.config.get("vitsearch") or {}
    facts: dict[str, Any] = {"parameters": f"{cost.params:,}", "multiply-accumulates": f"{cost.macs:,}"}
    facts |= {"image": f"{geometry.channels} x {geometry.image_size} x {geometry.image_size}"}
    if isinstance(handover.network, VisionNetwork) and (side := handover.network.architecture.resolution):
        facts["resized inside the network to"] = f"{side} x {side}"
    facts |= {"classes": geometry.classes}
    if (names := class_names(handover.config)) is not None:
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        facts["names of classes"] = ", ".join(names[:NAMED]) + more
    if plan is not None and plan.space is None:
        facts |= {"trained on": f"{plan.data}, {plan.parts}", "seed": plan.seed}
    for split in ("test", "validation"):
        if (top1 := result.get(f"{split}_top1", recorded.get(f"{split}_top1"))) is not None:
            images = result.get(f"{split}_images")
            facts[f"accuracy, {split} part"] = f"{top1:.2f} %" + (f" of {images:,} images" if images else "")
    return facts


def _recipe(recipe: Recipe) -> dict[str, Any]:
    fields = recipe.to_json()
    inner = {f"augmentation.{key}": value for key, value in fields.pop("augmentation").items()}
    return {"name": recipe_name(recipe)[0] or "not registered", **fields, **inner}


def _training(plan: TrainingPlan) -> list[str]:
    if plan.space is not None:
        return [f"The supernet of `{_plain(plan.space['name'])}`, networks drawn by `{_plain(plan.subnets)}`."]
    words = training_words(plan, "arch.json")
    lines = [_code("sh", shlex.join([*words, "--out", "run"]))] if words is not None else []
    if plan.start is not None:
        lines.append(f"It began with the weights `{_plain(plan.start)}`, sha256 `{_plain(plan.start_digest)}`.")
    return lines


def _use(handover: Handover, format: str) -> tuple[str, str]:
    language, text = USE["foreign" if format == "timm" and handover.settings is None else format]
    side, channels = str(handover.geometry.image_size), str(handover.geometry.channels)
    return language, text.replace("SIDE", side).replace("CHANNELS", channels)


def _preprocessing(handover: Handover) -> str:
    shown = handover.config["pretrained_cfg"]
    numbers = f"mean {list(shown['mean'])} and deviation {list(shown['std'])}"
    how = f"{_plain(shown.get('interpolation', 'bicubic'))}, crop {_plain(shown.get('crop_pct', 1.0))}"
    return f"Images are numbers from 0 to 1, resized ({how}), then normalised with {numbers}."


def _front_matter(handover: Handover, name: str) -> str:
    """YAML, of which JSON is a part: whatever a user wrote stays a text."""
    lines = ["---", "library_name: timm", "pipeline_tag: image-classification"]
    lines += ["tags: [image-classification, timm, vitsearch, neural-architecture-search]"]
    if handover.plan is not None and "test_top1" in handover.result:
        dataset = {"name": handover.plan.data, "type": handover.plan.data.partition(":")[0], "split": "test"}
        metric = {"type": "accuracy", "name": "top-1 accuracy in percent", "value": handover.result["test_top1"]}
        result = {"task": {"type": "image-classification"}, "dataset": dataset, "metrics": [metric]}
        lines += [f"model-index: {json.dumps([{'name': name, 'results': [result]}])}"]
    return "\n".join([*lines, "---"])


def _versions() -> str:
    versions = {"vitsearch": __version__, "torch": torch.__version__, "timm": timm.__version__}
    return ", ".join(f"{name} {text}" for name, text in (versions | {"Python": platform.python_version()}).items())


def _table(facts: dict[str, Any]) -> str:
    rows: Iterable[str] = (f"| {_plain(name)} | {_plain(value)} |" for name, value in facts.items())
    return "\n".join(["| | |", "|---|---|", *rows])


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text.replace('```', '')}\n```"


def _plain(value: object) -> str:
    """One line of text that means nothing else in Markdown or HTML."""
    text = " ".join(str(value).split())
    for character in "\\`|<>[]":
        text = text.replace(character, {"<": "&lt;", ">": "&gt;", "`": "'"}.get(character, f"\\{character}"))
    return text
