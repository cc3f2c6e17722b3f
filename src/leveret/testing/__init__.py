"""For tests of your own: the app on memory adapters and a fake clock, and the contract suites of the ports."""
