"""MLServer, in one process. A module, because it imports its model by name."""

import asyncio

from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class Echo(MLModel):
    async def load(self) -> bool:
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        values = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output("values", values)
        return InferenceResponse(model_name=self.name, outputs=[output])


def serve(port: int, message_bytes_max: int) -> None:
    settings = Settings(
        host="127.0.0.1",
        http_port=0,
        grpc_port=port,
        grpc_max_message_length=message_bytes_max,
        metrics_endpoint=None,
        parallel_workers=0,
        debug=False,
    )
    models = [ModelSettings(name="echo", implementation=f"{__name__}.Echo")]
    asyncio.run(MLServer(settings).start(models))
