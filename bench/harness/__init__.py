"""What all sections share: servers' processes, requests, counters, figures. Linux only."""
