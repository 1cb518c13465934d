/* The block function of SHA-256 by the processor's own instructions, where it has them. */
#ifndef SHA256_CPU_H
#define SHA256_CPU_H

#include <stddef.h>
#include <stdint.h>

typedef void sha256_blocks(uint32_t state[8], const uint8_t *blocks, size_t count);

sha256_blocks sha256_portable;

extern const uint32_t sha256_constants[64];

/* NULL: this processor has none, and the portable code does it. */
sha256_blocks *sha256_by_cpu(void);

#endif
