"""Methods that must see networks: they compose spaces, models, training and studies."""
