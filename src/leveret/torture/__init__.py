"""The torture test: processes on a real broker, struck while they work, and a ledger at the end."""
