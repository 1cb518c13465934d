"""What schemathesis is told beside the description."""

import schemathesis

schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
