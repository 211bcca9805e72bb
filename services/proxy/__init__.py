"""The data proxy: sessions, capture, and the event log (`store`), which any process may read."""
