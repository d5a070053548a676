"""The models of one front end as OpenAI's API shows them."""

from __future__ import annotations

import time

from batchpool.core.errors import NotFound
from batchpool.frontend.http.response import HttpResponse, json_response
from batchpool.frontend.service.endpoint_table import EndpointTable
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.frontend.service.prompt_limits import most_prompt_bytes
from batchpool.wire.embeddings import EmbeddingModel, embedding_model
from batchpool.wire.openai import model_list, model_object
from batchpool.wire.request import brief
from batchpool.wire.text_routes import check_makes_texts

_LONGEST_NAME = 128  # of a model; a longer one is not repeated
_WITHOUT_GENERATORS = 256 << 10  # bytes of a body, all of which are for models that are not there


class OpenAIModels:
    """The served models, those among them that embed, and those that generate texts."""

    def __init__(self, endpoints: EndpointTable) -> None:
        self._endpoints = endpoints
        self._created_s = int(time.time())

    def models(self) -> HttpResponse:
        """GET /v1/models."""
        return json_response(model_list(self._endpoints.by_model, self._created_s))

    def model(self, model: str) -> HttpResponse:
        """GET /v1/models/{model}."""
        return json_response(model_object(self._find(model).name, self._created_s))

    def embedding(self, name: str) -> tuple[HttpEndpoint, EmbeddingModel]:
        """The endpoint of a model that embeds; NotFound or InvalidRequest say why there is none."""
        endpoint = self._find(name)
        return endpoint, embedding_model(endpoint.endpoint.facts.spec)

    def generator(self, name: str) -> HttpEndpoint:
        """The endpoint of a generator that has a text; NotFound or InvalidRequest say why there is
        none."""
        endpoint = self._find(name)
        check_makes_texts(endpoint.endpoint.facts.spec)
        return endpoint

    def most_tokens(self, name: str) -> int:
        """The tokens of the longest prompt of a generator. Raises what `generator` raises; any
        thread may call it."""
        return self.generator(name).endpoint.facts.spec.inputs[0].max_shape[0]

    def most_text_bytes(self, prompts: int) -> int:
        """The most bytes of a body with so many prompts, whichever generator it may be for, which
        the body alone says."""
        specs = [each.endpoint.facts.spec for each in self._endpoints.by_model.values()]
        found = [most_prompt_bytes(spec, prompts) for spec in specs if spec.text is not None]
        return max(found, default=_WITHOUT_GENERATORS)

    def _find(self, name: str) -> HttpEndpoint:
        try:
            if name not in self._endpoints.by_model and len(name) > _LONGEST_NAME:
                raise NotFound(f"there is no model {brief(name)}")
            return self._endpoints.find(name)
        except NotFound as exc:
            exc.param = "model"
            raise
