/* Little-endian integers in byte buffers, whatever their alignment. */
#ifndef WIRE_H
#define WIRE_H

#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire is little-endian and is copied as it lies in memory"
#endif

static inline uint32_t get32(const uint8_t *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static inline uint64_t get64(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static inline uint8_t *put32(uint8_t *p, uint32_t value)
{
    memcpy(p, &value, sizeof value);
    return p + sizeof value;
}

static inline uint8_t *put64(uint8_t *p, uint64_t value)
{
    memcpy(p, &value, sizeof value);
    return p + sizeof value;
}

#endif
