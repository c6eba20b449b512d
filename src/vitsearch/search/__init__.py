"""Search strategies. A strategy is a function of the journal and the seed; it never sees a network."""

from vitsearch.search.base import STRATEGIES, Domain, History, Strategy, TriedIndex, parse_strategy

__all__ = ["STRATEGIES", "Domain", "History", "Strategy", "TriedIndex", "parse_strategy"]
