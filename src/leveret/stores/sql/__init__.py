"""What the stores with tables share: the scripts of their schemas, their columns, and `Filter` as SQL."""
