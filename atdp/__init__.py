"""ATDP 1.0: the record format of agent experience. Pure data: no I/O, no framework.

`records` holds the four record types as frozen structs, `canonical` their one canonical form
(RFC 8785), `chain` the hash chain that orders a trajectory, `messages` the way to and from
OpenAI chat messages, `schema` the JSON Schema generated from the structs.
"""
