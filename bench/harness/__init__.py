"""What `bench/quick.py` is made of. Standard library only, Linux only."""
