"""Two functions, which clients of OpenAI's API call as models, and others by JSON-RPC.

    python examples/openai/openai_server.py
    OPENAI_BASE_URL=http://localhost:8545/v1 OPENAI_API_KEY=none your-program

Replace `generate` and `embed` by those of your model.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import ucall

server = ucall.Server(port=8545)


@server
async def generate(messages: list[dict[str, Any]], max_tokens: int = 256) -> AsyncIterator[str]:
    """Yields the tokens of an answer. This one repeats the messages."""
    words = " ".join(message["content"] for message in messages).split()
    for word in words[:max_tokens]:
        await asyncio.sleep(0)
        yield word + " "


@server.batch
def embed(texts: list[str]) -> list[list[float]]:
    """A vector for each text. This one counts letters."""
    return [[float(text.count(letter)) for letter in "etaoins"] for text in texts]


ucall.openai.mount(server, chat={"echo-1": generate}, embeddings={"letters-1": embed})

if __name__ == "__main__":
    server.run()
