from __future__ import annotations

import pytest
import torch

from vitsearch.cost import Geometry
from vitsearch.data import open_data
from vitsearch.data.digits import training_part
from vitsearch.errors import VitsearchError


@pytest.mark.parametrize("name", ["digits", "noise"])
def test_batches_fit_the_network_and_repeat_with_the_seed(name: str) -> None:
    geometry = Geometry(image_size=20, classes=12, channels=3)
    batch = open_data(name).draw(16, geometry, 5)
    assert batch.images.shape == (16, 3, 20, 20) and batch.images.dtype == torch.float32
    assert batch.labels.shape == (16,) and 0 <= int(batch.labels.min()) <= int(batch.labels.max()) < 12
    again, other = open_data(name).draw(16, geometry, 5), open_data(name).draw(16, geometry, 6)
    assert torch.equal(batch.images, again.images) and torch.equal(batch.labels, again.labels)
    assert not torch.equal(batch.images, other.images)


def test_noise_is_standard_normal_with_uniform_labels() -> None:
    batch = open_data("noise").draw(500, Geometry(image_size=16, classes=5), 0)
    assert abs(float(batch.images.mean())) < 0.01 and abs(float(batch.images.std()) - 1) < 0.01
    assert batch.labels.bincount(minlength=5).min() > 70


def test_digits_are_real_and_keep_the_rest_shut() -> None:
    from sklearn.datasets import load_digits

    images, labels = training_part()
    assert len(labels) == 1257 and set(labels.tolist()) == set(range(10))
    everything = {
        image.tobytes(): int(target) for image, target in zip(load_digits().images, load_digits().target, strict=True)
    }
    shown = {(image * 16).double().numpy().tobytes(): int(label) for image, label in zip(images, labels, strict=True)}
    assert all(everything[key] == label for key, label in shown.items())
    assert len(shown) < len(everything)


def test_digits_refuse_what_they_cannot_give() -> None:
    with pytest.raises(VitsearchError, match="`classes` must be at least 10 for digits, but got 5"):
        open_data("digits").draw(4, Geometry(image_size=16, classes=5), 0)
    with pytest.raises(VitsearchError, match="`batch_size` must be from 1 to 1257"):
        open_data("digits").draw(2000, Geometry(image_size=16, classes=10), 0)
