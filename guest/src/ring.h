/* A byte ring addressed by absolute offsets: what a stream has produced and the host has not acknowledged. */
#ifndef RING_H
#define RING_H

#include "guest.h"

struct ring {
    uint8_t *memory;
    uint32_t capacity;
    uint32_t touched; /* the highest byte of memory ever used since it was last given back */
    uint64_t base;    /* the offset that lies at memory[0] */
    uint64_t start;   /* the oldest offset still held */
    uint64_t end;
};

/* Both rings of a process; pages come with use. False: no memory. */
bool rings_open(struct ring rings[2], uint32_t capacity);
void rings_close(struct ring rings[2]);

static inline size_t ring_room(const struct ring *ring)
{
    return ring->capacity - (size_t)(ring->end - ring->start);
}

/* The contiguous free part that comes next; ring_commit() after filling it. */
uint8_t *ring_space(struct ring *ring, size_t *room);
void ring_commit(struct ring *ring, size_t count);

/* The contiguous bytes from `offset` on, which is between start and end. */
const uint8_t *ring_at(const struct ring *ring, uint64_t offset, size_t *count);
void ring_forget(struct ring *ring, uint64_t before);

#endif
