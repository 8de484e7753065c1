"""Messages between server and clients, and their packing."""
