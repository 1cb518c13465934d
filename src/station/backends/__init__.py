"""How code is isolated. Each backend makes, adopts and destroys boxes, and yields a byte stream to the guest in them."""
