import asyncio
from pathlib import Path

from ucall import HttpResponse, Server

server = Server()
page = Path(__file__).with_name("chat.html")


@server
async def generate(prompt: str):  # the place of a model
    for word in f"You said: {prompt} A model would say more.".split(" "):
        yield f"{word} "
        await asyncio.sleep(0.05)


@server.http("/chat", methods=["GET"])
def chat(request):
    return HttpResponse(page.read_bytes(), content_type="text/html; charset=utf-8")


if __name__ == "__main__":
    server.run()
