"""Networks. Importing this package registers `vitsearch_net` and `vitsearch_resnet56` with timm."""

from vitsearch.models.resnet_cifar import CifarResNet, vitsearch_resnet56
from vitsearch.models.super_transformer import SuperTransformer
from vitsearch.models.supernet import Supernet
from vitsearch.models.vit import VisionNetwork, build, vitsearch_net

__all__ = [
    "CifarResNet",
    "SuperTransformer",
    "Supernet",
    "VisionNetwork",
    "build",
    "vitsearch_net",
    "vitsearch_resnet56",
]
