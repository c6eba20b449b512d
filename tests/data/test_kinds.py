"""Every kind of dataset reads what the test wrote, keeps its parts apart, and says in one line what is wrong."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from vitsearch.cost import Geometry
from vitsearch.data import DATASETS, Batch, Split, open_data, open_training_data
from vitsearch.data import parquet as parquet_module
from vitsearch.errors import BadData, UnknownName, VitsearchError

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
LABELS = [0, 1, 2] * 20


def parquet(folder: Path, make: Any) -> str:
    make.parquet(folder / "set-train.parquet", LABELS)
    return f"parquet:{folder}/set"


def image_folder(folder: Path, make: Any) -> str:
    make.folder(folder / "images", {"cat": 20, "dog": 20, "eel": 20})
    return f"folder:{folder}/images"


def webdataset(folder: Path, make: Any) -> str:
    for shard in range(2):
        rows = range(30 * shard, 30 * shard + 30)
        samples = [{"png": make.image(row), "cls": b"%d" % LABELS[row]} for row in rows]
        make.tar(folder / f"set-{shard:03d}.tar", samples, first=30 * shard)
    return f"wds:{folder}/set-{{000..001}}.tar"


def torchvision(folder: Path, make: Any) -> str:
    """Caltech256's layout has no parts, so all are held out."""
    categories = folder / "caltech256" / "256_ObjectCategories"
    for label, name in enumerate(("001.cat", "002.dog", "003.eel")):
        (categories / name).mkdir(parents=True)
        for number in range(20):
            (categories / name / f"{label + 1:03d}_{number + 1:04d}.jpg").write_bytes(
                make.image(20 * label + number, kind="JPEG")
            )
    return f"torchvision:Caltech256@{folder}"


KINDS = {"parquet": parquet, "folder": image_folder, "wds": webdataset, "torchvision": torchvision}


@pytest.fixture(params=[*KINDS, "digits"])
def text(request: pytest.FixtureRequest, tmp_path: Path, make: Any) -> str:
    return "digits" if request.param == "digits" else KINDS[request.param](tmp_path, make)


def test_every_kind_is_tested() -> None:
    assert set(DATASETS) == {*KINDS, "digits", "noise"}


def test_parts_share_no_image_and_are_always_the_same(text: str) -> None:
    data, again = open_training_data(text), open_training_data(text)
    seen: dict[Split, set[bytes]] = {}
    for split in SPLITS:
        part = data.part(split)
        assert len(part) == len(part.labels) > 0 and part.labels.dtype == torch.int64
        images = [part.read(index) for index in range(len(part))]
        assert all(image.dtype == torch.uint8 and image.shape[0] == data.channels for image in images)
        seen[split] = {image.numpy().tobytes() for image in images}
        assert torch.equal(part.labels, again.part(split).labels)
        assert all(torch.equal(image, again.part(split).read(index)) for index, image in enumerate(images))
    assert not seen["train"] & seen["validation"] and not seen["train"] & seen["test"]
    assert not seen["validation"] & seen["test"]
    if text != "digits":
        assert [len(data.part(split)) for split in SPLITS] == [42, 6, 12]
        assert all(set(data.part(split).labels.tolist()) == {0, 1, 2} for split in SPLITS)


def test_labels_belong_to_their_images(text: str, make: Any) -> None:
    if text == "digits" or text.startswith("torchvision"):
        pytest.skip("lossy, or tested beside the rest of digits")
    data = open_training_data(text)
    for split in SPLITS:
        part = data.part(split)
        for index in range(len(part)):
            number = int(part.read(index)[0, 0, 0])
            assert part.labels[index] == (number // 20 if text.startswith("folder") else LABELS[number])


@pytest.mark.parametrize("channels", [1, 3])
def test_draw_fits_the_network_and_repeats_with_the_seed(text: str, channels: int) -> None:
    geometry = Geometry(image_size=20, classes=12, channels=channels)
    data = open_data(text)
    batch, again, other = data.draw(16, geometry, 5), open_data(text).draw(16, geometry, 5), data.draw(16, geometry, 6)
    assert batch.images.shape == (16, channels, 20, 20) and batch.images.dtype == torch.float32
    assert torch.equal(batch.images, again.images) and torch.equal(batch.labels, again.labels)
    assert not torch.equal(batch.images, other.images)
    assert abs(float(batch.images.mean())) < 0.3 and 0.5 < float(batch.images.std()) < 1.3
    with pytest.raises(VitsearchError, match="`classes` must be at least"):
        data.draw(4, Geometry(image_size=8, classes=2), 0)
    with pytest.raises(VitsearchError, match="`batch_size` must be from 1 to"):
        data.draw(100_000, geometry, 0)


def test_draw_takes_training_images_alone(tmp_path: Path, make: Any) -> None:
    white, black = Image.new("RGB", (8, 8), "white"), Image.new("RGB", (8, 8), "black")
    for image, name in ((white, "train"), (black, "valid"), (black, "test")):
        image.save(tmp_path / "one.png")
        make.parquet(tmp_path / f"set-{name}.parquet", [0, 1] * 5, [(tmp_path / "one.png").read_bytes()] * 10)
    data = open_training_data(f"parquet:{tmp_path}/set")
    assert data.mean == (1.0, 1.0, 1.0) and len(data.part("train")) == 10
    assert float(data.draw(10, Geometry(image_size=8, classes=2), 0).images.abs().max()) < 1e-5


def test_parts_can_travel_to_workers(text: str) -> None:
    part = open_training_data(text).part("train")
    part.read(0)
    assert torch.equal(pickle.loads(pickle.dumps(part)).read(1), part.read(1))


def test_own_parts_are_used(tmp_path: Path, make: Any) -> None:
    for name, count, first in (("train", 20, 0), ("val", 4, 100), ("test", 6, 200)):
        make.folder(tmp_path / "f" / name, {"a": count, "b": count}, first)
        make.tar(
            tmp_path / f"set-{name}-0.tar",
            [{"png": make.image(first + i), "json": json.dumps({"label": i % 2}).encode()} for i in range(2 * count)],
        )
        make.parquet(tmp_path / "p" / f"{name}-00000-of-00002.parquet", [0, 1] * (count // 2), first=first)
        make.parquet(tmp_path / "p" / f"{name}-00001-of-00002.parquet", [0, 1] * (count // 2), first=first + count)
    texts = [f"folder:{tmp_path}/f", f"parquet:{tmp_path}/p", f"parquet:{tmp_path}/p/train-00000-of-00002.parquet"]
    texts += [f"wds:{tmp_path}/set-{{split}}-*.tar", f"wds:{tmp_path}/set-train-{{0..0}}.tar"]
    for text in texts:
        data = open_training_data(text)
        assert [len(data.part(split)) for split in SPLITS] == [40, 8, 12], text
        assert int(data.part("test").read(0)[0, 0, 0]) == 200
        with pytest.raises(VitsearchError, match="`split` must be one of train, validation, test"):
            data.part("val")  # type: ignore[arg-type]


def test_texts_that_are_wrong() -> None:
    with pytest.raises(UnknownName, match=r"no dataset named 'parket'\. Did you mean 'parquet'\?"):
        open_data("parket:x")
    with pytest.raises(VitsearchError, match="`data` must be 'parquet:PATH', but got 'parquet'"):
        open_data("parquet")
    with pytest.raises(VitsearchError, match="`data` must be 'wds:PATTERN', but got 'wds:'"):
        open_data("wds:")
    with pytest.raises(VitsearchError, match="`data` must be 'digits' alone"):
        open_data("digits:8")
    for kind in ("parquet", "folder", "wds"):
        for path in ("a\0b/c", "x" * 5000, "/proc/1/nothing/\0"):
            with pytest.raises(BadData) as caught:
                open_data(f"{kind}:{path}")
            assert "\n" not in str(caught.value)
    with pytest.raises(VitsearchError, match="'noise' serves proxies only"):
        open_training_data("noise")


def test_plugins_without_arguments_and_with_one() -> None:
    class Plain:
        classes = 2

        def draw(self, count: int, geometry: Geometry, seed: int) -> Batch:
            raise NotImplementedError

    class Optional(Plain):
        def __init__(self, size: str = "small") -> None:
            self.size = size

    DATASETS.add("plain", Plain)
    DATASETS.add("optional", Optional)
    assert open_data("plain").classes == 2
    assert open_data("optional").size == "small" and open_data("optional:big").size == "big"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, -1], "labels must be from 0 to 16777215, but item 2 has -1"),
        ([0, None, 1], "labels must be whole numbers, but item 1 has None"),
        ([0, 1, 0.5], "labels must be whole numbers, but item 0 has 0.0"),
        (["a", "b", "a"], "labels must be whole numbers, but item 0 has 'a'"),
        ([0, 0, 2], "every class must have an image to train on, but class 1 has none"),
        ([[0], [1], [1]], "every image must have one label"),
        ([], "the training part must have images"),
    ],
)
def test_bad_labels(labels: list[Any], message: str, tmp_path: Path, make: Any) -> None:
    make.parquet(tmp_path / "set-train.parquet", labels)
    with pytest.raises(BadData, match=message):
        open_data(f"parquet:{tmp_path}/set")


def test_labels_beyond_the_classes_of_the_training_part(tmp_path: Path, make: Any) -> None:
    make.parquet(tmp_path / "set-train.parquet", [0, 1] * 5)
    make.parquet(tmp_path / "set-test.parquet", [0, 1, 2])
    data = open_training_data(f"parquet:{tmp_path}/set")
    with pytest.raises(BadData, match="test: labels must be from 0 to 1, but item 2 has 2"):
        data.part("test")


def test_class_names_of_hugging_face(tmp_path: Path, make: Any) -> None:
    file = make.parquet(tmp_path / "set-train.parquet", [0, 1] * 5)
    features = {"info": {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}}}
    table = pq.read_table(file).replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, file)
    assert open_training_data(f"parquet:{tmp_path}/set").class_names == ("cat", "dog")


def test_plain_bytes_and_other_column_names(tmp_path: Path, make: Any) -> None:
    images = pa.array([make.image(number, "L") for number in range(10)])
    make.parquet(tmp_path / "x-train.parquet", [], img=images, fine_label=[0, 1] * 5, coarse_label=[0] * 10)
    data = open_training_data(f"parquet:{tmp_path}/x")
    assert (data.classes, data.channels) == (2, 1)


def test_parquet_files_larger_than_memory(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parquet_module, "KEPT_BYTES", 6000)  # two row groups or so
    data = open_training_data(parquet(tmp_path, make)).part("train")
    images = [data.read(index) for index in range(len(data))]
    assert "slow to read" not in caplog.text
    for _ in range(5):
        assert all(torch.equal(data.read(index), images[index]) for index in range(0, len(data), 5))
    assert caplog.text.count("slow to read") == 1


def test_parquet_files_that_are_wrong(tmp_path: Path, make: Any) -> None:
    for path in ("nothing", "nothing-train.parquet"):
        with pytest.raises(BadData, match="must lead to a training part"):
            open_data(f"parquet:{tmp_path}/{path}")
    with pytest.raises(BadData, match="must lead to files named"):
        open_data(f"parquet:{tmp_path}")
    (tmp_path / "bad-train.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(BadData, match=r"bad-train.parquet cannot be read as a parquet file"):
        open_data(f"parquet:{tmp_path}/bad")
    make.parquet(tmp_path / "no-train.parquet", [], picture=[b""], label=[0])
    with pytest.raises(BadData, match=r"must have a column named image or img .*but has picture, label"):
        open_data(f"parquet:{tmp_path}/no")
    with pytest.raises(BadData, match="must name one dataset"):
        open_data(f"parquet:{tmp_path}")
    make.parquet(tmp_path / "s-train-00001-of-00002.parquet", [0, 1])
    with pytest.raises(BadData, match="2 files must be there, but got 1"):
        open_data(f"parquet:{tmp_path}/s")


def test_folders_that_are_wrong(tmp_path: Path, make: Any) -> None:
    with pytest.raises(BadData, match="must be an existing folder"):
        open_data(f"folder:{tmp_path}/nothing")
    with pytest.raises(BadData, match="must have a folder of images for each class"):
        open_data(f"folder:{tmp_path}")
    make.folder(tmp_path / "f" / "test", {"a": 2})
    with pytest.raises(BadData, match="must have 'train' beside it"):
        open_data(f"folder:{tmp_path}/f")
    make.folder(tmp_path / "f" / "train", {"a": 2, "b": 0})
    with pytest.raises(BadData, match=r"class 1 \('b'\) has none"):
        open_data(f"folder:{tmp_path}/f")
    make.folder(tmp_path / "g" / "train", {"a": 2})
    make.folder(tmp_path / "g" / "test", {"z": 2})
    with pytest.raises(BadData, match="must have the classes of the training part, but has 'z' too"):
        open_training_data(f"folder:{tmp_path}/g").part("test")


def test_shards_that_are_wrong(tmp_path: Path, make: Any) -> None:
    with pytest.raises(BadData, match=r"must lead to tar files, but .*0001.tar' is not there"):
        open_data(f"wds:{tmp_path}/{{0001..0002}}.tar")
    with pytest.raises(BadData, match="is not there"):
        open_data(f"wds:{tmp_path}/*.tar")
    with pytest.raises(BadData, match="must name at most 1000000 files"):
        open_data("wds:x-{0..99999999999}.tar")
    whole = make.tar(tmp_path / "whole.tar", [{"png": make.image(i), "cls": b"0"} for i in range(9)]).read_bytes()
    for cut in (len(whole) // 2, 3000, 700):
        (tmp_path / "cut.tar").write_bytes(whole[:cut])
        with pytest.raises(BadData, match=r"cut.tar must be a whole, uncompressed tar file"):
            open_data(f"wds:{tmp_path}/cut.tar")
    for fields, message in (
        ({"png": b"", "cls": b"one"}, "the label must be a whole number, but got 'one'"),
        ({"png": b"", "json": b"{}"}, "the label must be a whole number"),
        ({"png": b""}, "must have a label"),
        ({"cls": b"0"}, "must have an image"),
    ):
        make.tar(tmp_path / "odd.tar", [fields])
        with pytest.raises(BadData, match=message):
            open_data(f"wds:{tmp_path}/odd.tar")


def test_torchvision_names_and_files(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"named 'CIFAR11'\. Did you mean 'CIFAR10'\?"):
        open_data(f"torchvision:CIFAR11@{tmp_path}")
    with pytest.raises(BadData, match="must hold the files"):
        open_data(f"torchvision:CIFAR10@{tmp_path}")
    for argument in ("CIFAR10", "@x", "CIFAR10@"):
        with pytest.raises(VitsearchError, match="`data` must be 'torchvision:NAME@ROOT'"):
            open_data(f"torchvision:{argument}")


def test_cifar10(datasets: Path) -> None:
    data = open_training_data(f"parquet:{datasets}/cifar10")
    test = data.part("test")
    assert len(test) == 10_000 and test.labels.bincount().tolist() == [1000] * 10
    assert len(data.part("train")) == 45_000 and data.part("validation").labels.bincount().tolist() == [500] * 10
    assert test.read(9_999).shape == (3, 32, 32)
    known = torch.tensor([0.4914, 0.4822, 0.4465])  # of the whole training part, as everybody uses it
    assert (torch.tensor(data.mean) - known).abs().max() < 0.01
