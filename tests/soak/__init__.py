"""Long good and hostile traffic, and its effect on the server's memory and descriptors."""
