"""Servers and clients that find one another by NATS. Imported only if a broker is given."""
