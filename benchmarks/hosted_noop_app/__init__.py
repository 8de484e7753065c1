"""fedsuite's exchange, with clients that do nothing: many on each SuperNode."""
