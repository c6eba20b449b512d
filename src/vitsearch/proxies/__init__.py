"""Zero-cost proxies: numbers read off an untrained network."""

from vitsearch.proxies.base import PROXIES, Proxy, Subject, parse_proxy, proxy

__all__ = ["PROXIES", "Proxy", "Subject", "parse_proxy", "proxy"]
