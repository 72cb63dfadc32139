"""One model over many ranks: FSDP2, collective operations, sharded files."""
