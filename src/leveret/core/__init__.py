"""Values and rules: what leveret decides, without any I/O. Standard library and msgspec only, and no await."""
