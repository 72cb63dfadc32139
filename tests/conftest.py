"""What every test starts from."""

import signal

# A shell starts what runs in its background with SIGINT ignored, and children inherit that: tests that interrupt what
# they have started would wait in vain.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
