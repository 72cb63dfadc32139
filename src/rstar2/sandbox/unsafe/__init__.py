"""The executor without isolation, for machines that cannot give any."""
