"""Connected ranks: rendezvous, small collectives, subgroups, TCP connections, devices and timing."""
