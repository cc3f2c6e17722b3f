"""Dead letters: kept with their reason, looked through, replayed, discarded, restored."""
