from ucall import Server

server = Server()


@server
def sum(a: int, b: int):
    return a + b


server.run()
