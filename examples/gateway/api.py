"""Prices of a shop: an API for a gateway, without keys, TLS or metrics of its own."""

import sys

from ucall import Server

PRICES = {"apple": 3, "pear": 4}
server = Server(port=int(sys.argv[1]) if len(sys.argv) > 1 else 8546)


@server(name="shop.price")
def price(item: str, amount: int = 1, *, shop: str) -> dict:
    """The gateway adds `shop` to each call, so no caller chooses it."""
    return {"shop": shop, "price": PRICES[item] * amount}


server.run()
