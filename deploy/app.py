import ucall

server = ucall.Server()


@server
def sum(a: int, b: int) -> int:
    return a + b


server.run()
