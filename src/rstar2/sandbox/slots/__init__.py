"""How a stateless program runs: templates that fork slots, slots that fork programs, and the queue before them."""
