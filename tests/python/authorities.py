"""Trust in one authority, of which no test has a certificate, instead of the system's 140.

Each client of httpx and each default context of `ssl` reads them anew: 30 ms of the processor.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ["SSL_CERT_FILE"] = str(Path(__file__).with_name("authority_of_none.pem"))
os.environ.pop("SSL_CERT_DIR", None)
