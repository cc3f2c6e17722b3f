"""Putting it together: configuration, wiring, and the runners."""
