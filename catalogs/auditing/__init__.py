"""The parts of ``catalogs.audit``: an auditor of evidence that shares no arithmetic with what wrote it.

It imports the standard library and what defines the documents (key, format, canonical JSON), and nothing that measures
or selects: a mistake in the tuner's own statistics must not be repeated here.
"""
