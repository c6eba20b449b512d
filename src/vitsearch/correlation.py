"""Which proxy can be trusted on which benchmark table: scores of its networks, and how they agree with the accuracies.

Every claim comes twice: plain, and with the size held fixed. The size baselines are part of every answer.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from vitsearch.architecture import Settings
from vitsearch.benchmark import Table
from vitsearch.cost import Geometry
from vitsearch.errors import BadStudy, UnknownName, VitsearchError
from vitsearch.proxies import PROXIES, parse_proxy
from vitsearch.proxies.size import BASELINES
from vitsearch.ranking import MEASURES, agreement, bootstrap_agreement, kendall
from vitsearch.records import append_whole, check_made_alike, parse_json
from vitsearch.registry import did_you_mean
from vitsearch.scoring import OUT_OF_MEMORY, ProxyEvaluator
from vitsearch.spaces import cost_of

FAST = (
    *("dss", "dss-diversity"),  # one pass, many networks at a time
    *("naswot", "linear_regions", "entropy"),  # one forward pass
    "autoproxp",  # weights alone
)
TE_SCORE, TE_PARTS = "te-score", ("ntk", "linear_regions")
Row = dict[str, Any]


def choose_proxies(text: str) -> list[str]:
    """Names with commas, `all` and `fast` among them; the size baselines come first in any case."""
    groups = {"all": [*PROXIES, TE_SCORE], "fast": list(FAST)}
    names = [name for part in text.split(",") for name in groups.get(part, [part])]
    for name in names:
        if name == TE_SCORE:
            continue
        try:
            parse_proxy(name)
        except UnknownName as error:
            known = [*PROXIES, TE_SCORE, "all", "fast"]
            if name.partition(":")[0] in PROXIES:
                raise
            raise UnknownName(f"no proxy named {name!r}.{did_you_mean(name, known)}") from error
    return list(dict.fromkeys([*BASELINES, *names]))


@dataclass(frozen=True, slots=True)
class Network:
    """A network of a table: settings in one space, and the geometry its column was measured with."""

    text: str
    geometry: Geometry

    @property
    def settings(self) -> Settings:
        found: Settings = json.loads(self.text)
        return found

    @classmethod
    def of(cls, settings: Settings, geometry: Geometry) -> Network:
        return cls(json.dumps(settings, sort_keys=True), geometry)


def network_of(table: Table, entry: int, column: str) -> Network:
    return Network.of(table.settings(table.entries[entry], column), table.columns[column].geometry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How networks are scored, but for the seed."""

    data: str = "noise"
    batch_size: int = 8
    weights: str = "fresh"
    device: str = "auto"
    memory: int | None = None


@dataclass(slots=True)
class ScoreBook:
    """Scores by (network, seed), and why others are missing. With a path, every chunk is kept as soon as it is there.

    The file has one JSON object a line: first the conditions, then {"arch", "geometry", "seed", "scores", "errors"}.
    """

    conditions: Conditions = field(default_factory=Conditions)
    path: Path | None = None
    scores: dict[tuple[Network, int], dict[str, float]] = field(default_factory=dict)
    errors: dict[tuple[Network, int], dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self._read(self.path)
        elif self.path is not None:
            self._append([self._header()])

    def _header(self) -> dict[str, Any]:
        kept = self.conditions
        return {"format": 1, "data": kept.data, "batch_size": kept.batch_size, "weights": kept.weights}

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        if _line(self._header()).startswith(content):  # empty, or cut off in its first line
            os.truncate(path, 0)
            return self._append([self._header()])
        lines = content.split(b"\n")
        whole = [line for line in lines[:-1] if line]  # what follows the last line end was cut off
        check_made_alike(path, whole[0] if whole else b"{}", self._header(), "give another file")
        for number, line in enumerate(whole[1:], 2):
            item = parse_json(line, f"{path} line {number}")
            try:
                key = (Network.of(item["arch"], Geometry(**item["geometry"])), int(item["seed"]))
                scores, errors = (_lasting(item[name]) for name in ("scores", "errors"))
                self.scores.setdefault(key, {}).update({name: float(v) for name, v in scores.items()})
                self.errors.setdefault(key, {}).update({name: str(v) for name, v in errors.items()})
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise BadStudy(f"{path} line {number} is not a scored network: {error}") from None
        if lines[-1]:
            with open(path, "r+b") as file:
                file.truncate(len(b"\n".join(lines[:-1])) + 1)

    def _append(self, items: Iterable[Mapping[str, Any]]) -> None:
        if self.path is not None:
            with open(self.path, "ab", buffering=0) as file:
                append_whole(file, b"".join(map(_line, items)), self.path, "the scores in it are safe")

    def fill(
        self,
        networks: Iterable[Network],
        proxies: Sequence[str],
        seeds: Sequence[int],
        progress: Callable[[int, int], None] | None = None,
        chunk: int | None = None,
    ) -> None:
        """Score what is not in the book yet."""
        names = [name for name in proxies if name != TE_SCORE]
        names += [name for name in TE_PARTS if TE_SCORE in proxies and name not in names]
        work: dict[tuple[Geometry, int, tuple[str, ...]], list[Network]] = {}
        for seed in seeds:
            for network in dict.fromkeys(networks):
                known = self.scores.get((network, seed), {}).keys() | self.errors.get((network, seed), {}).keys()
                missing = tuple(name for name in names if name not in known)
                if missing:
                    work.setdefault((network.geometry, seed, missing), []).append(network)
        total, done = sum(map(len, work.values())), 0
        options: dict[str, Any] = {
            name: getattr(self.conditions, name) for name in ("data", "batch_size", "weights", "device", "memory")
        }
        for (geometry, seed, missing), listed in work.items():
            evaluator = ProxyEvaluator(missing, geometry=geometry, seed=seed, **options)
            size = chunk or evaluator.chunk(listed[0].settings)
            for start in range(0, len(listed), size):
                if progress:
                    progress(done, total)
                part = listed[start : start + size]
                self._keep(part, seed, evaluator([network.settings for network in part]))
                done += len(part)
        if progress:
            progress(total, total)

    def _keep(self, networks: Sequence[Network], seed: int, found: Sequence[Any]) -> None:
        lines = []
        for network, score in zip(networks, found, strict=True):
            self.scores.setdefault((network, seed), {}).update(score.scores)
            self.errors.setdefault((network, seed), {}).update(score.errors)
            geometry = {name: getattr(network.geometry, name) for name in ("image_size", "classes", "channels")}
            line = {"arch": network.settings, "geometry": geometry, "seed": seed}
            lasting = {name: text for name, text in score.errors.items() if text != OUT_OF_MEMORY}
            lines.append(line | {"scores": score.scores, "errors": lasting})
        self._append(lines)

    def column(self, networks: Sequence[Network], seed: int, proxy: str) -> list[float | None]:
        """Scores of networks, higher is better, None where there is none."""
        if proxy == TE_SCORE:
            return _sum_of_ranks([self.column(networks, seed, part) for part in TE_PARTS])
        sign = -1.0 if parse_proxy(proxy)[0].direction == "min" else 1.0
        found = [self.scores.get((network, seed), {}).get(proxy) for network in networks]
        return [None if value is None else sign * value for value in found]

    def failures(self, networks: Sequence[Network], seed: int, proxy: str) -> list[str]:
        parts = TE_PARTS if proxy == TE_SCORE else (proxy,)
        return [
            self.errors[key][part]
            for key in ((network, seed) for network in networks)
            for part in parts
            if part in self.errors.get(key, {})
        ]


def _line(item: Mapping[str, Any]) -> bytes:
    return json.dumps(item, allow_nan=False).encode() + b"\n"


def _lasting(found: Mapping[str, Any]) -> dict[str, Any]:
    """Without what was scored by a file, which may have another formula by now."""
    return {name: value for name, value in found.items() if not name.startswith("file:")}


def _sum_of_ranks(columns: Sequence[Sequence[float | None]]) -> list[float | None]:
    """TE-NAS: the sum of the ranks within the table; equal values share their mean rank."""
    complete = [all(column[index] is not None for column in columns) for index in range(len(columns[0]))]
    ranks = [_ranks([value for value, known in zip(column, complete, strict=True) if known]) for column in columns]
    sums = iter([sum(parts) for parts in zip(*ranks, strict=True)])
    return [next(sums) if known else None for known in complete]


def _ranks(values: Sequence[float | None]) -> list[float]:
    known = [cast(float, value) for value in values]
    return [sum(o < value for o in known) + (sum(o == value for o in known) + 1) / 2 for value in known]


def correlate(
    tables: Sequence[Table],
    book: ScoreBook,
    proxies: Sequence[str],
    seeds: Sequence[int],
    columns: Sequence[str] = (),
    resamples: int = 500,
) -> list[Row]:
    """A row for each table, source file (None: all of them), proxy and dataset, then its joint measure."""
    rows: list[Row] = []
    for table in tables:
        sources: list[str | None] = [None, *(table.sources() if len(table.sources()) > 1 else [])]
        for source in sources:
            for proxy in proxies:
                here = []
                for column in columns or table.columns:
                    if column in table.columns:
                        row = _row(table, column, source, book, proxy, seeds, resamples)
                        here.append(row)
                rows += here
                rows += _joint(table, source, proxy, here)
    return rows


def measured(table: Table, column: str, source: str | None = None) -> list[tuple[Network, float]]:
    """Networks and accuracies of a column, of one source file or of all."""
    return [
        (network_of(table, number, column), accuracy)
        for number, accuracy in table.accuracies(column)
        if source is None or table.entries[number].source == source
    ]


def _row(
    table: Table, column: str, source: str | None, book: ScoreBook, proxy: str, seeds: Sequence[int], resamples: int
) -> Row:
    pairs = measured(table, column, source)
    networks = [network for network, _ in pairs]
    scored = [book.column(networks, seed, proxy) for seed in seeds]
    whole = [index for index in range(len(pairs)) if all(scores[index] is not None for scores in scored)]
    accuracies = [pairs[index][1] for index in whole]
    sizes = [cost_of(networks[index].settings, networks[index].geometry).params for index in whole]
    per_seed = [[cast(float, scores[index]) for index in whole] for scores in scored]
    found = [agreement(scores, accuracies, sizes) for scores in per_seed]
    failures = book.failures(networks, seeds[0], proxy)
    row: Row = {"benchmark": table.name, "proxy": proxy, "dataset": column, "source": source}
    row |= {"networks": len(whole), "failed": len(pairs) - len(whole), "failure": failures[0] if failures else None}
    row["direction"] = "max" if proxy == TE_SCORE else parse_proxy(proxy)[0].direction
    row |= {"pairs": found[0].equal_size_pairs, "near_size_pairs": found[0].near_size_pairs}
    intervals = bootstrap_agreement(per_seed, accuracies, sizes, resamples=resamples) if len(whole) > 1 else {}
    for measure in MEASURES:
        values = [getattr(one, measure) for one in found]
        row[measure] = _mean(values)
        low, high = intervals.get(measure) or (None, None)
        row |= {f"{measure}_low": low, f"{measure}_high": high}
    row |= {"seeds": list(seeds), "kendall_by_seed": [one.kendall for one in found]}
    row["kendall_deviation"] = _deviation([one.kendall for one in found])
    return row


def _joint(table: Table, source: str | None, proxy: str, rows: Sequence[Row]) -> list[Row]:
    """Auto-Prox's joint correlation: the mean Kendall over datasets, all with the weight 1.

    Of a dataset that was trained twice, the distilled accuracies count, as the published ranking has it.
    """
    distilled = {row["dataset"] for row in rows if row["dataset"].endswith("_kd")}
    chosen = [row for row in rows if f"{row['dataset']}_kd" not in distilled and row["networks"] > 1]
    if len(chosen) < 2:
        return []
    row: Row = {"benchmark": table.name, "proxy": proxy, "dataset": "joint", "source": source}
    row |= {"networks": max(one["networks"] for one in chosen), "columns": [one["dataset"] for one in chosen]}
    for measure in MEASURES:
        row[measure] = None if "regret" in measure else _mean([one[measure] for one in chosen])
        row |= {f"{measure}_low": None, f"{measure}_high": None}  # columns share networks: there is no interval
    return [row | {"direction": chosen[0]["direction"], "seeds": chosen[0]["seeds"]}]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _deviation(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    mean = sum(known) / len(known)
    return math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))


def between_proxies(
    table: Table, column: str, book: ScoreBook, proxies: Sequence[str], seed: int
) -> list[list[float | None]]:
    """Kendall's tau of every pair of proxies on the networks of a column."""
    networks = [network for network, _ in measured(table, column)]
    columns = [book.column(networks, seed, proxy) for proxy in proxies]

    def one(first: Sequence[float | None], second: Sequence[float | None]) -> float | None:
        both = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
        return kendall([a for a, _ in both], [b for _, b in both]) if len(both) > 1 else None

    return [[one(first, second) for second in columns] for first in columns]


def check_columns(tables: Sequence[Table], columns: Sequence[str]) -> None:
    known = [name for table in tables for name in table.columns]
    for name in columns:
        if name not in known:
            raise VitsearchError(f"`column` must be one of {', '.join(dict.fromkeys(known))}, but got {name!r}")
        if columns.count(name) > 1:  # it would weigh twice in the mean
            raise VitsearchError(f"`column` must name each column once, but got {name!r} more than once")
