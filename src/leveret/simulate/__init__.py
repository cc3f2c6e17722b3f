"""The simulator: the real core on virtual time, with faults, the same for the same seed."""
