"""The proof: a record of what was accepted and what became of it, kept outside the system, and its judge."""
