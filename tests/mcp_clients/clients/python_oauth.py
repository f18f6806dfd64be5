"""Gets tokens for a server, and calls its tools by the official Python SDK; prints what it got.

python_oauth.py legacy|auto URL
"""

import asyncio
import json
import sys
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata


class Storage:
    def __init__(self) -> None:
        self.tokens = self.client = None

    async def get_tokens(self) -> object:
        return self.tokens

    async def set_tokens(self, tokens: object) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> object:
        return self.client

    async def set_client_info(self, client: object) -> None:
        self.client = client


class Browser:
    """A user who agrees."""

    async def open(self, url: str) -> None:
        async with httpx2.AsyncClient() as http:
            location = (await http.get(url)).headers["location"]
        self.query = parse_qs(urlsplit(location).query)

    async def result(self) -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=self.query["code"][0], state=self.query["state"][0])


async def main(mode: str, url: str) -> None:
    browser = Browser()
    metadata = OAuthClientMetadata(redirect_uris=["http://127.0.0.1:1/done"], client_name="test")
    auth = OAuthClientProvider(url, metadata, Storage(), browser.open, browser.result)
    texts = []
    async with (
        httpx2.AsyncClient(auth=auth) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        for name in ("read", "write", "read"):
            called = await client.call_tool(name, {})
            texts.append(called.content[0].text)
    print(json.dumps(texts))


asyncio.run(main(*sys.argv[1:]))
