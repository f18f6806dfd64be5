"""Long mixed traffic, good and hostile, and what it does to the server's memory and descriptors."""
