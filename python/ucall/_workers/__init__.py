"""Worker processes: their supervisor, their sockets, and service managers."""
