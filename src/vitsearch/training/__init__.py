"""Training a network: from scratch, from weights, with a teacher."""
