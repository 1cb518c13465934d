"""What `station.container` and `station.host` have in common: the interface of the seed's adapters, over the SDK."""
