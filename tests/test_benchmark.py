from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vitsearch.benchmark import Column, Entry, Table, describe, read_table, write_table
from vitsearch.cost import IMAGENET, Geometry
from vitsearch.errors import UnknownName, VitsearchError
from vitsearch.spaces import canonical, cost_of, sample

PLAIN = sample("autoformer-tiny-plain", 6, seed=1)
PIT = sample("pit", 6, seed=1)
ONE_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
anything = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 300),
        st.sampled_from([10**400, 1e308, -0.0, 70.5, "pit", "\ud800", "a\nb"]),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=6,
)


def valid() -> dict[str, Any]:
    """A file with everything a file may have."""
    return {
        "benchmark": "B",
        "space": "autoformer-tiny-plain",
        "split": "half",
        "classes": 100,
        "image_size": 224,
        "channels": 3,
        "note": "two\nlines",
        "datasets": {"flowers": {"classes": 102, "image_size": 96}, "imagenet": {"space": "autoformer-tiny"}},
        "entries": [
            {"arch": PLAIN[0], "source": "s", "accuracy": {"cifar100": 70, "flowers": 50.5}},
            {"arch": PLAIN[1], "accuracy": {"cifar100": 71.25, "imagenet": None}},
            {"arch": PLAIN[0], "source": "t", "accuracy": {"imagenet": 0.0}},
        ],
    }


def written(folder: Path, content: object, name: str = "table.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refused(path: Path | str) -> str:
    """The one line that says why a file is no table; it begins with the file."""
    with pytest.raises(VitsearchError) as caught:
        read_table(path)
    text = str(caught.value)
    assert str(path) in text and "\n" not in text
    return text


def test_json(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, valid()))
    assert (table.name, table.split, table.note) == ("B", "half", "two\nlines")
    assert table.geometry == Geometry(image_size=224, classes=100)
    assert table.columns == {
        "cifar100": Column("cifar100", None, table.geometry),
        "flowers": Column("flowers", None, Geometry(image_size=96, classes=102)),
        "imagenet": Column("imagenet", "autoformer-tiny", table.geometry),
    }
    assert table.entries[0] == Entry(PLAIN[0], "s", {"cifar100": 70.0, "flowers": 50.5, "imagenet": None})
    assert isinstance(table.entries[0].accuracy["cifar100"], float)
    assert table.accuracies("cifar100") == [(0, 70.0), (1, 71.25)]
    assert table.accuracies("imagenet") == [(2, 0.0)]
    assert table.sources() == ["s", "t"]
    assert table.settings(table.entries[0], "flowers") == PLAIN[0]
    moved = table.settings(table.entries[0], "imagenet")
    assert moved == canonical(PLAIN[0] | {"space": "autoformer-tiny"})
    assert cost_of(moved) != cost_of(PLAIN[0])
    with pytest.raises(UnknownName, match=r"no column named 'flower'\. Did you mean 'flowers'"):
        table.accuracies("flower")


def test_settings_become_canonical(tmp_path: Path) -> None:
    shuffled = dict(reversed(PLAIN[0].items())) | {
        "mlp_ratio": [int(r) if r == 4 else r for r in PLAIN[0]["mlp_ratio"]]
    }
    content = valid() | {"entries": [{"arch": shuffled, "accuracy": {"a": 1}}]}
    arch = read_table(written(tmp_path, content)).entries[0].arch
    assert json.dumps(arch) == json.dumps(PLAIN[0])


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6).filter(str.isprintable)
percents = st.one_of(st.none(), st.floats(0, 100), st.integers(0, 100))
geometries = st.builds(
    Geometry, image_size=st.integers(32, 256), classes=st.integers(1, 2000), channels=st.integers(1, 4)
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    space = draw(st.sampled_from(["autoformer-tiny-plain", "pit"]))
    overrides = st.sampled_from([None, space, "pit-tiny" if space == "pit" else "autoformer-tiny"])
    labels = draw(
        st.lists(names.filter(lambda name: name not in ("arch", "source")), min_size=1, unique=True, max_size=4)
    )
    archs = sample(space, draw(st.integers(1, 4)), seed=draw(st.integers(0, 50)))
    distinct = {json.dumps(arch): arch for arch in archs}.values()
    entries = [
        Entry(arch, draw(st.one_of(st.none(), names)), {label: draw(percents) for label in labels}) for arch in distinct
    ]
    return Table(
        name=draw(names),
        space=space,
        geometry=draw(geometries),
        columns={label: Column(label, draw(overrides), draw(geometries)) for label in labels},
        entries=tuple(entries),
        note=draw(names) + draw(st.sampled_from(["", "\n", "\u00a0x"])),
        split=draw(st.one_of(st.just(""), names)),
    )


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet"])
@given(table=tables())
@settings(ONE_FOLDER, max_examples=60)
def test_what_is_written_reads_back(tmp_path: Path, suffix: str, table: Table) -> None:
    path = tmp_path / f"table{suffix}"
    write_table(table, path)
    again = read_table(path)
    assert again == table
    assert list(again.columns) == list(table.columns)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert json.loads(json.dumps(describe(again), allow_nan=False))["entries"] == len(table.entries)


def test_writing(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, valid()))
    with pytest.raises(VitsearchError, match=r"is written to \.json, \.csv, \.parquet, but got '.*x\.pth'"):
        write_table(table, tmp_path / "x.pth")
    for suffix in (".json", ".csv", ".parquet"):
        with pytest.raises(VitsearchError, match=r"cannot write '.*': No such file or directory"):
            write_table(table, tmp_path / "missing" / f"x{suffix}")
        (tmp_path / f"folder{suffix}").mkdir()
        with pytest.raises(VitsearchError, match=r"cannot write .*: Is a directory"):
            write_table(table, tmp_path / f"folder{suffix}")
        write_table(table, tmp_path / f"TABLE{suffix.upper()}")
        assert read_table(str(tmp_path / f"TABLE{suffix.upper()}")) == table
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_a_table_made_by_hand_is_checked() -> None:
    column = Column("a", None, IMAGENET)
    entry = Entry(PIT[0], None, {"a": 1.0})
    table = Table("T", "pit", IMAGENET, {"a": column}, (entry,))
    for changes, message in [
        ({"entries": (Entry(PIT[0], None, {}),)}, r"entry 0: `accuracy` must have \['a'\], but got \[\]"),
        ({"entries": (Entry(PIT[0] | {"mlp_ratio": 4.0, "patch_size": 16}, None, {"a": 1.0}),)}, "canonical settings"),
        ({"entries": (entry, entry)}, "entry 1: the same architecture from the same source is entry 0 already"),
        ({"entries": ()}, "there must be entries and columns of accuracies, but got 0 and 1"),
        ({"columns": {"b": column}}, "cannot be named 'b'"),
        ({"columns": {"arch": dataclasses.replace(column, name="arch")}}, "cannot be named 'arch'"),
        ({"space": "pit-tiny"}, "entry 0: `arch` must be canonical settings of pit-tiny"),
    ]:
        with pytest.raises(VitsearchError, match=message):
            dataclasses.replace(table, **changes)  # type: ignore[arg-type]


def entry_with(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["entries"][1].update(changes)


def accuracy(value: object, name: str = "cifar100") -> Callable[[dict[str, Any]], object]:
    return lambda content: content["entries"][1]["accuracy"].update({name: value})


def top(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content.update(changes)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (top(entries=[]), "there must be entries and columns of accuracies, but got 0 and 2"),
        (top(entries={}), "`entries` must be a list, but got {}"),
        (top(entries=[{"arch": PLAIN[0], "accuracy": {}}], datasets={}), "there must be entries and columns"),
        (top(entries=[3]), "entry 0: an entry must be an object, but got 3"),
        (lambda content: content.pop("entries"), "`entries` must be a list, but got None"),
        (lambda content: content.pop("space"), "`space` must be a text that can be printed, but got None"),
        (lambda content: content.pop("classes"), "`classes` must be a whole number from 1 to .*, but got None"),
        (lambda content: content.pop("image_size"), "`image_size` must be a whole number from 1 to .*, but got None"),
        (top(space="pit"), "entry 0: `arch` must be canonical settings of pit, but got .*plain"),
        (top(space=["pit"]), r"`space` must be a text that can be printed, but got \['pit'\]"),
        (top(classes="x"), "`classes` must be a whole number from 1 to .*, but got 'x'"),
        (top(classes=True), "`classes` must be .*, but got True"),
        (top(channels=None), "`channels` must be .*, but got None"),
        (top(image_size=8), "entry 0: `image_size` must be at least the patch size 16, but got 8"),
        (top(benchmark=""), "`benchmark` must be a text that can be printed, but got ''"),
        (top(benchmark="a\nb"), "`benchmark` must be a text that can be printed"),
        (top(note=3), "`note` must be a text that can be printed, but got 3"),
        (top(note="\ud800"), "`note` must be a text that can be printed"),
        (top(split=[]), r"`split` must be a text that can be printed, but got \[\]"),
        (top(datasets=[]), r"`datasets` must be an object, but got \[\]"),
        (top(datasets={"flowers": 102}), "`datasets`, 'flowers': a dataset must be an object, but got 102"),
        (
            top(datasets={"flowers": {"class": 102}}),
            "`datasets`, 'flowers': it may override space, .*, but got 'class'",
        ),
        (top(datasets={"flowers": {"classes": 0}}), "`datasets`, 'flowers': `classes` must be .*, but got 0"),
        (top(datasets={"flowers": {"space": None}}), "`datasets`, 'flowers': `space` must be a text .*, but got None"),
        (top(datasets={"flowers": {"space": "pit"}}), "entry 0: pit has no setting 'embed_dim'"),
        (top(datasets={"flowers": {"space": "pti"}}), "entry 0: no space named 'pti'. Did you mean 'pit'"),
        (top(datasets={"flowers": {"image_size": 15}}), "entry 0: `image_size` must be at least the patch size 16"),
        (entry_with(arch=None), "entry 1: an architecture must be a JSON object of settings, but got None"),
        (entry_with(arch={}), "entry 1: settings need `space`"),
        (entry_with(arch=PLAIN[1] | {"depth": 3}), "entry 1: `num_heads` must have `depth` = 3 entries"),
        (entry_with(arch=PIT[0]), "entry 1: `arch` must be canonical settings of autoformer-tiny-plain, but got"),
        (entry_with(arch=PLAIN[0], source="s"), "entry 1: the same architecture from the same source is entry 0"),
        (entry_with(source=""), "entry 1: `source` must be a text that can be printed, but got ''"),
        (entry_with(source=7), "entry 1: `source` must be a text that can be printed, but got 7"),
        (entry_with(accuracy=70.0), "entry 1: `accuracy` must be an object, but got 70.0"),
        (lambda content: content["entries"][1].pop("accuracy"), "entry 1: `accuracy` must be an object, but got None"),
        (accuracy(100.5), "entry 1: accuracy 'cifar100' must be a number from 0 to 100 or null, but got 100.5"),
        (accuracy(-1), "entry 1: accuracy 'cifar100' must be a number from 0 to 100 or null, but got -1"),
        (accuracy(10**400), "entry 1: accuracy 'cifar100' must be a number from 0 to 100 or null, but got 1000"),
        (accuracy(True), "entry 1: accuracy 'cifar100' must be a number .*, but got True"),
        (accuracy("70"), "entry 1: accuracy 'cifar100' must be a number .*, but got '70'"),
        (accuracy([70]), r"entry 1: accuracy 'cifar100' must be a number .*, but got \[70\]"),
        (accuracy(float("nan")), "the file is not valid JSON: NaN is not a number"),
        (accuracy(1, name=""), "`name of an accuracy` must be a text that can be printed, but got ''"),
        (accuracy(1, name="source"), "an accuracy cannot be named 'source'"),
    ],
)
def test_broken_json(tmp_path: Path, damage: Callable[[dict[str, Any]], object], message: str) -> None:
    content = json.loads(json.dumps(valid()))
    damage(content)
    path = written(tmp_path, content)
    with pytest.raises(VitsearchError, match=f"^{path}: {message}"):
        read_table(path)
    refused(path)


@pytest.mark.parametrize("suffix", [".json", ".csv", ".parquet", ".pth"])
def test_what_is_no_file_of_its_kind(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    assert "No such file" in refused(path)
    path.mkdir()
    assert "Is a directory" in refused(path)
    path.rmdir()
    path.touch()
    assert refused(path) == f"{path}: the file is empty"
    for content in (b"\xff\xfe\x00{", b"{", b"[" * 100_000, b"PAR1", b"PK\x03\x04", b"\x80\x02", b"\x00" * 50):
        path.write_bytes(content)
        refused(path)
    with pytest.raises(VitsearchError, match=r"cannot read .*: embedded null byte"):
        read_table(f"a\0b{suffix}")


@pytest.mark.parametrize("name", ["x", "x.txt", "x.json.gz", ".json"])
def test_other_suffixes(tmp_path: Path, name: str) -> None:
    assert "must end in .json, .csv, .parquet, .pth, but got" in refused(tmp_path / name)


ARCH = '"' + json.dumps(PIT[0]).replace('"', '""') + '"'
OTHER = '"' + json.dumps(PIT[1]).replace('"', '""') + '"'


@pytest.mark.parametrize("before", ["", "\ufeff"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_csv_of_others(tmp_path: Path, before: str, newline: str) -> None:
    lines = ["b,arch,c d", f"1.5,{ARCH},", "", f",{OTHER},7"]
    table = read_table(written(tmp_path, before + newline.join(lines), "mine.csv"))
    assert (table.name, table.space, table.geometry) == ("mine", "pit", IMAGENET)
    assert [entry.accuracy for entry in table.entries] == [{"b": 1.5, "c d": None}, {"b": None, "c d": 7.0}]
    assert [entry.arch for entry in table.entries] == PIT[:2] and table.sources() == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n", "there must be a column `arch` and no column twice, but got []"),
        ("a,b\n1,2\n", "there must be a column `arch` and no column twice, but got ['a', 'b']"),
        ("arch,a,a\n", "there must be a column `arch` and no column twice, but got ['arch', 'a', 'a']"),
        ("arch,a\n", "there must be entries and columns of accuracies, but got 0 and 0"),
        (f"arch\n{ARCH}\n", "there must be entries and columns of accuracies, but got 1 and 0"),
        (f"arch,a\n{ARCH},1\n{OTHER}\n", "entry 1: there must be 2 fields, but got 1"),
        (f"arch,a\n{ARCH},1,2\n", "entry 0: there must be 2 fields, but got 3"),
        ("arch,a\n{},1\n", "entry 0: settings need `space`"),
        ("arch,a\n[1],1\n", "entry 0: an architecture must be a JSON object of settings"),
        ("arch,a\n,1\n", "entry 0: `arch` must be settings as JSON text, but got None"),
        (f"arch,a\n{ARCH},1\nnonsense,1\n", "entry 1: `arch` is not valid JSON"),
        (f"arch,a\n{ARCH},high\n", "entry 0: accuracy 'a' must be a number from 0 to 100 or null, but got 'high'"),
        (f"arch,a\n{ARCH},nan\n", "entry 0: accuracy 'a' must be a number from 0 to 100 or null, but got nan"),
        (f"arch,a\n{ARCH},1e999\n", "but got inf"),
        (f"arch,a\n{ARCH},1\n{ARCH},2\n", "entry 1: the same architecture from the same source is entry 0 already"),
        (f"arch,\n{ARCH},1\n", "`name of an accuracy` must be a text that can be printed, but got ''"),
        (f'arch,a\n{ARCH},"1', "the file is not CSV in UTF-8: unexpected end of data"),
        (f"# nonsense\narch,a\n{ARCH},1\n", "the header is not valid JSON"),
        (f"# []\narch,a\n{ARCH},1\n", "the header must be an object, but got []"),
        (f"# {{}}\narch,a\n{ARCH},1\n", "`image_size` must be a whole number"),
        (f'arch,a\n"{"x" * 200_000}",1\n', "the file is not CSV in UTF-8: field larger than field limit"),
    ],
)
def test_broken_csv(tmp_path: Path, content: str, message: str) -> None:
    assert message in refused(written(tmp_path, content, "x.csv"))


def test_csv_in_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes("arch,é\n".encode("latin-1"))
    assert "the file is not CSV in UTF-8" in refused(tmp_path / "x.csv")


def test_parquet_of_others(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    single = pa.array([None, 50.5], pa.float32())
    pq.write_table(pa.table({"arch": [json.dumps(arch) for arch in PIT[:2]], "a": [1, 2], "b": single}), path)
    table = read_table(path)
    assert (table.name, table.space, table.geometry) == ("mine", "pit", IMAGENET)
    assert [entry.accuracy for entry in table.entries] == [{"a": 1.0, "b": None}, {"a": 2.0, "b": 50.5}]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1.0]}, "there must be a column `arch`"),
        ({"arch": [PIT[0]], "a": [1.0]}, "entry 0: `arch` must be settings as JSON text, but got {"),
        ({"arch": [3], "a": [1.0]}, "entry 0: `arch` must be settings as JSON text, but got 3"),
        ({"arch": [json.dumps(PIT[0])], "a": [True]}, "entry 0: accuracy 'a' must be a number"),
        ({"arch": [json.dumps(PIT[0])], "a": [[1.0]]}, "entry 0: accuracy 'a' must be a number"),
        ({"arch": [json.dumps(PIT[0])], "a": [float("nan")]}, "but got nan"),
        ({"arch": [json.dumps(PIT[0])], "source": [3], "a": [1.0]}, "entry 0: `source` must be a text"),
    ],
)
def test_broken_parquet(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table(columns), path)
    assert message in refused(path)


def test_torn_parquet(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_table(read_table(written(tmp_path, valid())), path)
    whole = path.read_bytes()
    for size in range(1, len(whole), 97):
        path.write_bytes(whole[:size])
        assert "the file is not Parquet that can be read" in refused(path)
    schema = pa.schema([("arch", pa.string())], metadata={"vitsearch": "nonsense"})
    pq.write_table(pa.table({"arch": [json.dumps(PIT[0])]}, schema=schema), path)
    assert "the header is not valid JSON" in refused(path)


BASE = {"c100_base_acc": 70.0, "flower_base_acc": 50.0, "chaoyang_base_acc": 80.0}
DISTILLED = {"c100_kd_acc": 75, "flower_kd_acc": torch.tensor(60.5), "chaoyang_kd_acc": torch.tensor([85.0])}
BLOCKS = {"depth": 12, "num_heads": [3] * 12, "mlp_ratio": [4.0] * 12}
AUTOFORMER = {"hidden_dim": 192, **BLOCKS}


def saved(folder: Path, content: object) -> Path:
    torch.save(content, folder / "gt.pth")
    return folder / "gt.pth"


def test_published_pit(tmp_path: Path) -> None:
    arch = {"base_dim": 32, "mlp_ratio": 4, "depth": [1, 6, 6], "num_heads": [2, 8, 8]}
    other = {"base_dim": 16, "mlp_ratio": 6, "depth": torch.Size([2, 8, 4]), "heads": (2, 4, 4)}
    table = read_table(saved(tmp_path, [{"arch": arch, **BASE, **DISTILLED}, {"arch": other, "index": 1, **DISTILLED}]))
    assert (table.name, table.space, table.sources()) == ("gt", "pit", ["gt"])
    assert [entry.arch["num_heads"] for entry in table.entries] == [[2, 8, 8], [2, 4, 4]]
    assert table.entries[0].accuracy == {
        "cifar100": 70.0,
        "flowers": 50.0,
        "chaoyang": 80.0,
        "cifar100_kd": 75.0,
        "flowers_kd": 60.5,
        "chaoyang_kd": 85.0,
    }
    assert table.entries[1].accuracy["cifar100"] is None
    assert {name: column.geometry.classes for name, column in table.columns.items()} == {
        "cifar100": 100,
        "cifar100_kd": 100,
        "flowers": 102,
        "flowers_kd": 102,
        "chaoyang": 4,
        "chaoyang_kd": 4,
    }
    assert describe(table)["params"] == {"min": 893_828, "max": 9_736_804}  # facts/pit.md, section 4


@pytest.mark.parametrize("width", [{"hidden_dim": 192}, {"embed_dim": 192}, {"embed_dim": [192] * 12}])
def test_published_autoformer(tmp_path: Path, width: dict[str, object]) -> None:
    arch = {**width, "depth": 12, "heads": [3] * 12, "mlp_ratio": [4.0] * 12}
    table = read_table(saved(tmp_path, [{"arch": arch, "c100_kd_acc": 75.0, "imagenet_super_acc": 74.6}]))
    assert table.entries[0].arch == canonical({"space": "autoformer-tiny-plain", "embed_dim": 192, **BLOCKS})
    assert table.columns["imagenet_inherited"] == Column("imagenet_inherited", "autoformer-tiny", IMAGENET)
    assert table.settings(table.entries[0], "imagenet_inherited")["space"] == "autoformer-tiny"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"arch": AUTOFORMER}, "the file must hold a list of dicts, but got {"),
        ([[AUTOFORMER]], "the file must hold a list of dicts, but got"),
        ([], "there must be entries and columns of accuracies, but got 0 and 0"),
        ([{**BASE}], "entry 0: `arch` must be an object, but got None"),
        ([{"arch": [1], **BASE}], "entry 0: `arch` must be an object, but got [1]"),
        ([{"arch": AUTOFORMER}], "there must be entries and columns of accuracies, but got 1 and 0"),
        ([{"arch": AUTOFORMER, "c100_kd_acc": float("nan")}], "entry 0: accuracy 'cifar100_kd' must be a number"),
        ([{"arch": AUTOFORMER, "c100_kd_acc": torch.tensor(True)}], "entry 0: accuracy 'cifar100_kd' must be a number"),
        ([{"arch": AUTOFORMER, "c100_kd_acc": torch.zeros(2)}], "something else than plain lists"),
        ([{"arch": AUTOFORMER, "c100_kd_acc": torch.tensor(1j)}], "something else than plain lists"),
        ([{"arch": AUTOFORMER, "c100_kd_acc": {1, 2}}], "something else than plain lists"),
        ([{"arch": AUTOFORMER, "c100_kd_acc": Fraction(1, 2)}], "something else than plain lists"),
        ([{"arch": AUTOFORMER, "c100_kd_acc": numpy.float64(1)}], "something else than plain lists"),
        ([{"arch": AUTOFORMER | {"embed_dim": 192}, **BASE}], "entry 0: `arch` must have each setting under one name"),
        ([{"arch": AUTOFORMER | {"hidden_dim": [192, 216]}, **BASE}], "entry 0: `embed_dim` must be a whole number"),
        ([{"arch": AUTOFORMER | {"base_dim": 16}, **BASE}], "entry 0: pit has no setting 'embed_dim'"),
        ([{"arch": PIT[0], "imagenet_super_acc": 70.0}], "entry 0: autoformer-tiny has no setting 'base_dim'"),
    ],
)
def test_broken_published(tmp_path: Path, content: object, message: str) -> None:
    assert message in refused(saved(tmp_path, content))


def test_a_pickle_of_another_protocol_is_one_line(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "gt.pth").write_bytes(b"\x80\x04]q.")
    assert "the file is broken" in refused(tmp_path / "gt.pth") and not recwarn.list


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "owned",)

    circle: list[Any] = []
    circle.append(circle)
    for content in ([{"arch": Hostile()}], Hostile(), circle):
        assert "something else than plain lists" in refused(saved(tmp_path, content))
    assert not (tmp_path / "owned").exists()


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


@given(data=st.data())
@settings(ONE_FOLDER, max_examples=500)
def test_anything_anywhere_is_a_table_or_our_error(tmp_path: Path, data: st.DataObject) -> None:
    content = [json.loads(json.dumps(valid()))]
    for _ in range(data.draw(st.integers(1, 2))):
        everywhere = list(places(content))
        container, key = everywhere[data.draw(st.integers(0, len(everywhere) - 1))]
        action = data.draw(st.sampled_from(["replace", "replace", "remove", "add"]))
        if action == "remove" and container is not content:
            del container[key]
        elif action == "add" and isinstance(container, dict):
            container[data.draw(st.text(max_size=5))] = data.draw(anything)
        else:
            container[key] = data.draw(anything)
    path = written(tmp_path, json.dumps(content[0]))
    try:
        table = read_table(path)
    except VitsearchError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)
    else:
        json.dumps(describe(table), allow_nan=False)
        write_table(table, tmp_path / "again.csv")
        assert read_table(tmp_path / "again.csv") == table


@given(content=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
@settings(ONE_FOLDER, max_examples=150)
@pytest.mark.parametrize("suffix", [".csv", ".pth"])
def test_arbitrary_bytes(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"x{suffix}"
    path.write_bytes(content)
    refused(path)


def test_describe(tmp_path: Path) -> None:
    content = valid()
    content["datasets"]["flower"] = {"classes": 102}  # a slip of the pen: shown, not silently without effect
    summary = describe(read_table(written(tmp_path, content)))
    assert summary["sources"] == {"s": 1, "t": 1} and summary["entries"] == 3
    assert summary["columns"][0] == {
        "name": "cifar100",
        "space": "autoformer-tiny-plain",
        "image_size": 224,
        "classes": 100,
        "channels": 3,
        "measured": 2,
        "min": 70.0,
        "median": 70.625,
        "max": 71.25,
    }
    assert summary["columns"][2]["space"] == "autoformer-tiny"
    assert summary["columns"][3]["measured"] == 0 and summary["columns"][3]["median"] is None
    assert summary["warnings"] == ["flower: nothing is measured"]


def warnings_of(values: list[float]) -> list[str]:
    entries = tuple(Entry(PIT[0], f"s{number}", {"a": value}) for number, value in enumerate(values))
    found: list[str] = describe(Table("T", "pit", IMAGENET, {"a": Column("a", None, IMAGENET)}, entries))["warnings"]
    return found


def test_warnings() -> None:
    column = [60.0, 61.0, 62.0, 63.0, 64.0, 65.0, 66.0]
    assert warnings_of(column) == []
    assert warnings_of([*column, 20.0]) == ["entry 7: far outside in a 20.0 (median 62.50)"]
    assert warnings_of([99.0, *column]) == ["entry 0: far outside in a 99.0 (median 63.50)"]
    assert warnings_of([50.0] * 9 + [51.0]) == []  # no spread to measure by
    assert warnings_of([1.0, 99.0, 1.0]) == []


def test_the_published_autoformer_table(datasets: Path, tmp_path: Path) -> None:
    table = read_table(datasets / "vitbench101" / "autoformer-search.json")
    assert len(table.entries) == 120 and table.sources() == ["gt_autoformer", "gt_autoformer_2"]
    summary = describe(table)
    assert {
        column["name"]: (column["space"], column["classes"], column["measured"]) for column in summary["columns"]
    } == {
        "cifar100": ("autoformer-tiny-plain", 100, 60),
        "cifar100_kd": ("autoformer-tiny-plain", 100, 120),
        "flowers": ("autoformer-tiny-plain", 102, 60),
        "flowers_kd": ("autoformer-tiny-plain", 102, 120),
        "chaoyang": ("autoformer-tiny-plain", 4, 60),
        "chaoyang_kd": ("autoformer-tiny-plain", 4, 120),
        "imagenet_inherited": ("autoformer-tiny", 1000, 120),
    }
    assert summary["warnings"] == ["entry 3: far outside in flowers_kd 48.5607 (median 68.28)"]
    for suffix in (".json", ".csv", ".parquet"):
        write_table(table, tmp_path / f"table{suffix}")
        assert read_table(tmp_path / f"table{suffix}") == table


def test_the_published_pit_table(datasets: Path) -> None:
    table = read_table(datasets / "vitbench101" / "pit-search.json")
    assert len(table.entries) == 60 and len(table.columns) == 6 and table.sources() == ["gt_pit"]
    assert table.columns["flowers_kd"] == Column("flowers_kd", None, Geometry(classes=102))
    summary = describe(table)
    assert summary["params"] == {"min": 156_612, "max": 29_472_420}
    assert [warning.split(":")[0] for warning in summary["warnings"]] == ["entry 32", "entry 33", "entry 53"]
    small = sorted(range(60), key=lambda number: cost_of(table.entries[number].arch).params)[:6]
    assert {32, 33, 53} <= set(small)  # weak in most columns, as the smallest networks are


def measured_pit(folder: Path) -> Path:
    """Ten networks; the first is there from two sources, the last has no accuracy."""
    networks = sample("pit", 10, seed=3)
    rows = [{"arch": one, "source": "s", "accuracy": {"a": 50.0 + n, "b": 60.0 - n}} for n, one in enumerate(networks)]
    rows[-1]["accuracy"] = {"a": None, "b": None}
    rows.append({"arch": networks[0], "source": "t", "accuracy": {"a": 90.0, "b": 10.0}})
    columns = {"a": {}, "b": {"image_size": 64}}
    return written(
        folder,
        {"benchmark": "B", "space": "pit", "classes": 10, "image_size": 32} | {"datasets": columns, "entries": rows},
    )


def test_a_table_is_an_objective(tmp_path: Path, cli: Callable[..., Any]) -> None:
    file = measured_pit(tmp_path)
    networks = sample("pit", 10, seed=3)[:-1]
    expected = {json.dumps(one): 50.0 + n for n, one in enumerate(networks)} | {json.dumps(networks[0]): 70.0}
    for strategy in ("random", "exhaustive", "evolution:population=4,parents=2", "nsga2:population=4"):
        out = tmp_path / strategy.partition(":")[0]
        command = ["search", "pit", "--objective", f"bench:{file}", "--strategy", strategy, "--device", "cpu", "--json"]
        found = cli(*command, "--trials", 50, "--out", out).json()
        assert found["trials"] == 9 and found["best"]["settings"] == networks[0]
        trials = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
        assert {json.dumps(one["settings"]): one["measured"][f"bench:{file}"] for one in trials} == expected
    small = sorted(cost_of(one, Geometry(image_size=64, classes=10)).params for one in networks)[3]
    command = ["search", "pit", "--objective", f"min:bench:{file}:column=b", "--max-params", small, "--json"]
    found = cli(*command, "--device", "cpu", "--out", tmp_path / "few").json()
    assert found["trials"] == 4
    assert json.loads((tmp_path / "few" / "study.json").read_text())["geometry"]["image_size"] == 64
    file.write_text(file.read_text() + " ")
    assert "was made elsewhere (tables" in cli(*command, "--out", tmp_path / "few", "--resume").error()


def test_tables_that_are_no_objective(tmp_path: Path, cli: Callable[..., Any]) -> None:
    file = measured_pit(tmp_path)
    for space, objective, reason in (
        ("pit", f"bench:{file}:column=c", "no column named 'c'"),
        ("pit", f"bench:{tmp_path / 'none.json'}", "cannot read"),
        ("pit-tiny", f"bench:{file}", "must be of the space that is searched, pit-tiny, but got a table of pit"),
        ("pit", f"bench:{file},bench:{file}:column=b", "`objective` must be of the space that is searched"),
    ):
        command = ["search", space, "--objective", objective, "--trials", 2, "--out", tmp_path / "out"]
        assert reason in cli(*command).error()
        assert not (tmp_path / "out").exists()
    command = ["search", "pit", "--objective", f"bench:{file},params", "--data", "digits", "--out", tmp_path / "out"]
    assert "`--data` must not be given with objective bench:" in cli(*command).error()


def test_several_tables_behind_one_option(tmp_path: Path, cli: Callable[..., Any]) -> None:
    """As the contract writes it, `--bench FILE...`; other options may follow."""
    files = [measured_pit(tmp_path).rename(tmp_path / f"{name}.json") for name in "ab"]
    repeated = cli("bench", "show", "--bench", files[0], "--bench", files[1], "--json").json()
    assert cli("bench", "show", "--bench", *files, "--json").json() == repeated and len(repeated) == 2
    assert cli("bench", "show", "--json", "--bench", *files).json() == repeated
    assert cli("bench", "show", "--bench").code == 2
