"""Networks. Importing this package registers `vitsearch_net` with timm."""

from vitsearch.models.vit import VisionNetwork, build, vitsearch_net

__all__ = ["VisionNetwork", "build", "vitsearch_net"]
