"""Several nodes as one gateway: who owns a session, commands on their way to it, events on their way back.

The store says who owns what (:class:`~gateway.stores.base.SharedStore`: leases, and a fence on every commit), so a
bus that is down, empty or cut off can never make two owners. The bus carries signals only, each at most once: what it
loses is read from the store. From the bottom: ``base``, ``local``, ``redis`` (the bus), ``calls`` (questions between
nodes), ``lease`` (being alive), ``guests`` and ``replicas`` (other nodes' connections and sessions, as seen here),
``hub``.
"""
