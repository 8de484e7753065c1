"""Effects: no key of any method is taken and then without effect."""
