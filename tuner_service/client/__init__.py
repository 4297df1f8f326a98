"""Typed client of the tuner's HTTP API. Imports nothing of the server."""

from tuner_service.client.errors import ApiProblem, ClientError, ServiceUnreachable
from tuner_service.client.http import Client, Document

__all__ = ["ApiProblem", "Client", "ClientError", "Document", "ServiceUnreachable"]
