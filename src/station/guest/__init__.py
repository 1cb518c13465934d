"""The host side of the guest protocol (docs/guest-protocol.md)."""
