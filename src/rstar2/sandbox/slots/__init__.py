"""Runs stateless programs: templates that fork slots, slots that fork programs, and the queue before them."""
