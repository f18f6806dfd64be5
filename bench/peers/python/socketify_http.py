"""socketify, which is uWebSockets under CPython. The argument is the port."""

import sys

from jsonrpc import answer
from socketify import App


def call(response, request):
    def on_data(response, chunk, is_end):
        # A request of this size comes in one chunk.
        if is_end:
            response.write_header("Content-Type", "application/json").end(answer(chunk))

    response.on_data(on_data)


app = App()
app.post("/", call)
app.listen(int(sys.argv[1]))
app.run()
