"""Image data for proxies that need it. Searching only ever sees the training part."""

from vitsearch.data.base import DATASETS, Batch, ImageSource, open_data

__all__ = ["DATASETS", "Batch", "ImageSource", "open_data"]
