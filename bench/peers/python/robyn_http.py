"""Robyn, one process and one worker. The argument is the port."""

import sys

from jsonrpc import answer
from robyn import Response, Robyn

port = int(sys.argv.pop())
sys.argv += ["--processes", "1", "--workers", "1", "--log-level", "ERROR"]
app = Robyn(__file__)
HEADERS = {"content-type": "application/json"}


@app.post("/")
def call(request):
    return Response(status_code=200, headers=HEADERS, description=answer(request.body))


app.start(host="127.0.0.1", port=port, _check_port=False)
