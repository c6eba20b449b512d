"""What formulas need to know of benchmark networks, captured once: evaluating a formula runs no network again.

For every network the cache holds one safetensors file with

    table   [layers, slots, branches] in float64: every branch of two unary operations over every matrix of a layer,
            from the whole matrices in full precision. Sums and differences of branches follow from it exactly.
    shapes  [layers, slots, 2]: of the matrices
    a block of each matrix, for products and deeper formulas: evenly spaced rows and columns, at most `keep` elements,
            in half precision over the block's largest magnitude, which `scales` [layers, slots] has.

A matrix of at most `keep` elements is there as a whole. So the cache takes at most layers x slots x (8 x branches +
2 x keep) bytes for each network: 1.5 MB at 14 layers and the default. `index.jsonl` names the files and their SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from vitsearch.architecture import Architecture, brief, check_whole
from vitsearch.correlation import Conditions, Network
from vitsearch.cost import Geometry
from vitsearch.errors import BadStudy, VitsearchError
from vitsearch.models.weights import WeightBank
from vitsearch.proxies.branches import Branches, branches
from vitsearch.proxies.expression import INPUTS
from vitsearch.proxies.group_pass import GroupPass
from vitsearch.proxies.layers import LINEARS, OF_MLP, Layer, LayerTaker, block_names, weights_of
from vitsearch.records import check_made_alike, lock_file, parse_json, write_bytes_atomically
from vitsearch.scoring import ProxyEvaluator
from vitsearch.spaces import decode

SLOTS = (
    *("qkv.weight", "qkv.grad", "proj.weight", "proj.grad", "fc1.weight", "fc1.grad", "fc2.weight", "fc2.grad"),
    *("mlp.act", "mlp.act_grad"),
)
KEEP = 4096
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Statistics:
    """What is known of one network; the names are those of the file."""

    table: Tensor
    shapes: Tensor
    scales: Tensor
    blocks: Mapping[tuple[int, str], Tensor]

    def to_bytes(self) -> bytes:
        named = {f"{layer}/{slot}": block for (layer, slot), block in self.blocks.items()}
        return save({"table": self.table, "shapes": self.shapes, "scales": self.scales, **named})

    @classmethod
    def from_bytes(cls, content: bytes) -> Statistics:
        found = load(content)
        table, shapes, scales = (found.pop(name) for name in ("table", "shapes", "scales"))
        named = {(int(name.partition("/")[0]), name.partition("/")[2]): block for name, block in found.items()}
        return cls(table, shapes, scales, named)


class Capture(LayerTaker):
    """Statistics of one network, from a batched pass; `known` are those of its activations, from another column."""

    def __init__(
        self, bank: WeightBank, plan: Architecture, keep: int, slots: frozenset[str], known: Statistics | None
    ) -> None:
        needs = {slot for slot in slots if not slot.endswith(".weight")}
        super().__init__(1, bank, frozenset(needs - {"mlp.act"} if known is not None else needs))
        self.slots = slots
        self.plan, self.keep, self.known, self.names = plan, keep, known, block_names(plan)
        size = (len(self.names), len(SLOTS))
        self.table = torch.full((*size, len(branches())), math.nan, dtype=torch.float64)
        self.shapes = torch.zeros(*size, 2, dtype=torch.int64)
        self.scales = torch.zeros(*size, dtype=torch.float32)
        self.blocks: dict[tuple[int, str], Tensor] = {}

    def on_layer(self, network: int, block: str, layer: Layer) -> None:
        number = self.names.index(block)
        for slot, matrix in layer.items():
            self.put(number, slot, Branches(matrix).values(), matrix)

    def put(self, layer: int, slot: str, values: Sequence[float], matrix: Tensor) -> None:
        at = SLOTS.index(slot)
        self.table[layer, at] = torch.tensor(values, dtype=torch.float64)
        self.shapes[layer, at] = torch.tensor(matrix.shape)
        kept = block_of(matrix, self.keep)
        scale = kept.abs().max()
        self.scales[layer, at] = scale
        self.blocks[layer, slot] = (kept / scale if scale > 0 else kept).half()

    def statistics(self) -> Statistics:
        """Once the pass is through: the weights, and what another column knew."""
        for number, (block, shapes) in enumerate(weights_of(self.plan)):
            for place, short in [item for item in LINEARS.items() if f"{item[1]}.weight" in self.slots]:
                name, shape = f"{block}.{place}.weight", shapes[short]
                weight = self.bank.get(name, shape, shape[1], absolute=False, dtype=torch.float32)
                self.put(number, f"{short}.weight", self._of_weight(name, weight), weight)
        if self.known is not None:
            at = SLOTS.index("mlp.act")
            for whole, theirs in ((self.table, self.known.table), (self.shapes, self.known.shapes)):
                whole[:, at] = theirs[:, at]
            self.scales[:, at] = self.known.scales[:, at]
            self.blocks |= {key: block for key, block in self.known.blocks.items() if key[1] == "mlp.act"}
        return Statistics(self.table, self.shapes, self.scales, self.blocks)

    def _of_weight(self, name: str, weight: Tensor) -> list[float]:
        """Once for each different weight."""
        keys = [("branch", name, tuple(weight.shape), number) for number in range(len(branches()))]
        if keys[-1] not in self.bank.noted:
            self.bank.noted |= dict(zip(keys, Branches(weight).values(), strict=True))
        return [self.bank.noted[key] for key in keys]


def slots_of(inputs: Sequence[str]) -> frozenset[str]:
    """The matrices behind inputs of formulas."""
    parts = [[name.replace("mlp", fc) for fc in ("fc1", "fc2")] if name in OF_MLP else [name] for name in inputs]
    return frozenset(slot for part in parts for slot in part)


def block_of(matrix: Tensor, keep: int) -> Tensor:
    """Evenly spaced rows and columns, as near to a square as the matrix allows."""
    rows, columns = matrix.shape
    some = min(columns, max(math.isqrt(keep), keep // rows))
    fewer = min(rows, keep // some)
    return matrix[torch.arange(fewer) * rows // fewer][:, torch.arange(some) * columns // some]


@dataclass(slots=True)
class StatisticsCache:
    """The statistics of networks on disk. `open` makes the folder, or checks that it was made in the same way."""

    folder: Path
    conditions: Conditions
    seed: int = 0
    keep: int = KEEP
    inputs: tuple[str, ...] = INPUTS
    """Inputs of formulas that are captured; for weights alone no network runs at all."""
    files: dict[Network, tuple[str, str]] = field(default_factory=dict)
    """File and SHA-256."""
    _noted: dict[str, dict[Hashable, float]] = field(default_factory=dict)
    """Of weights, which columns share."""

    def __post_init__(self) -> None:
        check_whole("keep", self.keep, least=64, most=1 << 30)
        for name in self.inputs:
            if name not in INPUTS:
                raise VitsearchError(f"`inputs` must be among {', '.join(INPUTS)}, but got {brief(name)}")
        if self._index.exists() and self._index.stat().st_size:
            self._read()

    @property
    def _index(self) -> Path:
        return self.folder / "index.jsonl"

    def _header(self) -> dict[str, Any]:
        made = self.conditions
        names = hashlib.sha256("\n".join(branches()).encode()).hexdigest()[:16]
        how = {"data": made.data, "batch_size": made.batch_size, "weights": made.weights, "seed": self.seed}
        return {"format": FORMAT, **how, "keep": self.keep, "inputs": list(self.inputs), "branches": names}

    def _read(self) -> None:
        lines = self._index.read_bytes().split(b"\n")[:-1]  # what follows the last line end was cut off
        check_made_alike(self._index, lines[0] if lines else b"{}", self._header(), "give another --cache")
        for number, line in enumerate(lines[1:], 2):
            item = parse_json(line, f"{self._index} line {number}")
            try:
                network = Network.of(item["arch"], Geometry(**item["geometry"]))
                self.files[network] = (str(item["file"]), str(item["sha256"]))
            except (KeyError, TypeError) as error:
                raise BadStudy(f"{self._index} line {number} is not a network: {error}") from None

    def read(self, network: Network) -> Statistics:
        name, digest = self.files[network]
        try:
            content = (self.folder / name).read_bytes()
        except OSError as error:
            raise BadStudy(f"cannot read {self.folder / name}: {error.strerror}") from None
        if hashlib.sha256(content).hexdigest() != digest:
            raise BadStudy(f"{self.folder / name} is not what was written: remove it, and it is captured again")
        return Statistics.from_bytes(content)

    def make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            rule = "must be a folder that can be written"
            raise VitsearchError(f"`cache` {rule}, but got {str(self.folder.parent)!r}: {error.strerror}") from None

    def fill(self, networks: Sequence[Network], progress: Callable[[int, int], None] | None = None) -> None:
        """Capture what is missing: each thread has a network, and what is done is kept at once."""
        gone = [network for network, (name, _) in self.files.items() if not (self.folder / name).exists()]
        for network in gone:
            del self.files[network]
        missing = [network for network in dict.fromkeys(networks) if network not in self.files]
        if not missing:
            return
        evaluators = {geometry: self._evaluator(geometry) for geometry in {one.geometry for one in missing}}
        self.make_folder()
        with open(self._index, "a+b", buffering=0) as index:
            lock_file(index, self._index)
            complete = self._index.read_bytes().rfind(b"\n") + 1
            index.truncate(complete)
            if not complete:
                index.write(json.dumps(self._header()).encode() + b"\n")
            threads = torch.get_num_threads()
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                done = pool.map(lambda network: self._capture(network, evaluators[network.geometry], index), missing)
                for count, _ in enumerate(done, 1):
                    if progress:
                        progress(count, len(missing))

    def _evaluator(self, geometry: Geometry) -> ProxyEvaluator:
        given = {name: value for name, value in asdict(self.conditions).items() if name != "memory"}
        evaluator = ProxyEvaluator([], geometry=geometry, seed=self.seed, **given)
        evaluator.batch()
        return evaluator

    def _capture(self, network: Network, evaluator: ProxyEvaluator, index: Any) -> None:
        settings = network.settings
        plan = decode(settings)
        bank = evaluator.bank(settings, plan)
        bank.noted = self._noted.setdefault(f"{settings['space']} {plan.initialisation}", bank.noted)
        known = self._same_images(network) if "mlp.act" in self.inputs else None
        taker = Capture(bank, plan, self.keep, slots_of(self.inputs), known)
        if taker.needs:
            run = GroupPass(plans=[plan], bank=taker.bank, absolute=False, dtype=torch.float32, takers=[taker])
            run.run(evaluator.batch(), network.geometry)
        content = taker.statistics().to_bytes()
        digest = hashlib.sha256(content).hexdigest()
        name = f"{digest[:24]}.safetensors"
        write_bytes_atomically(self.folder / name, content)
        line = {"arch": settings, "geometry": asdict(network.geometry), "file": name, "sha256": digest}
        index.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        os.fsync(index.fileno())
        self.files[network] = (name, digest)

    def _same_images(self, network: Network) -> Statistics | None:
        """Of the same network with another number of classes: noise and its activations do not depend on that."""
        if self.conditions.data != "noise":
            return None
        size = (network.geometry.image_size, network.geometry.channels)
        for other in list(self.files):
            if other.text == network.text and (other.geometry.image_size, other.geometry.channels) == size:
                return self.read(other)
        return None
