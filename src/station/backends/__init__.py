"""How code is isolated. A backend makes, adopts and destroys boxes, and yields a byte stream to the guest in them."""
