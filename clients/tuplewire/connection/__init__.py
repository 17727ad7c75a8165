"""Sessions that continue over replaced streams, and the event loop that runs them."""
