"""Typed client of the tuner's HTTP API. Imports nothing of the server."""

from tuner_service.client.errors import ApiProblem, ClientError, ServiceUnreachable
from tuner_service.client.http import Client
from tuner_service.client.pages import Document, Listing, Pages

__all__ = ["ApiProblem", "Client", "ClientError", "Document", "Listing", "Pages", "ServiceUnreachable"]
