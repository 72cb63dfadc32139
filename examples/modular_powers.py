"""What a model writes when a problem cannot be done in the head."""

from sympy import factorint

print(pow(7, 2025, 1000))
factorint(2**64 - 1)
