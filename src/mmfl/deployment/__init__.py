"""Real clients: the same methods over nodes that keep their data, on Flower's SuperLink and SuperNodes."""
