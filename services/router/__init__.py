"""The router: which agent version answers a session, and what that version adds to the request."""
