"""The executor without isolation, for machines that cannot isolate."""
