"""Sessions kept up over streams that come and go, and the event loop that carries them."""
