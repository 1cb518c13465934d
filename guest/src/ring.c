#include "ring.h"

#include <sys/mman.h>

#define KEEP_RESIDENT 65536u
/* The rings begin on a page each, on every page size in use, so that one can be given back without the other. */
#define PAGE_LARGEST 65536u

static size_t stride(uint32_t capacity)
{
    return ((size_t)capacity + PAGE_LARGEST - 1) & ~(size_t)(PAGE_LARGEST - 1);
}

bool rings_open(struct ring rings[2], uint32_t capacity)
{
    size_t size = 2 * stride(capacity);
    uint8_t *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    /* A fork neither pays for these pages nor sees another command's output. */
    madvise(memory, size, MADV_DONTFORK);
    rings[0] = (struct ring){.memory = memory, .capacity = capacity};
    rings[1] = (struct ring){.memory = memory + stride(capacity), .capacity = capacity};
    return true;
}

void rings_close(struct ring rings[2])
{
    if (rings[0].memory)
        munmap(rings[0].memory, 2 * stride(rings[0].capacity));
    rings[0].memory = rings[1].memory = NULL;
}

uint8_t *ring_space(struct ring *ring, size_t *room)
{
    /* Starting over when empty keeps a stream that is read in time within a few pages. */
    if (ring->start == ring->end)
        ring->base = ring->end;
    size_t at = (size_t)((ring->end - ring->base) % ring->capacity);
    size_t free_bytes = ring_room(ring);
    *room = free_bytes < ring->capacity - at ? free_bytes : ring->capacity - at;
    return ring->memory + at;
}

void ring_commit(struct ring *ring, size_t count)
{
    size_t reached = (size_t)((ring->end - ring->base) % ring->capacity) + count;
    if (reached > ring->touched)
        ring->touched = (uint32_t)reached;
    ring->end += count;
}

const uint8_t *ring_at(const struct ring *ring, uint64_t offset, size_t *count)
{
    size_t at = (size_t)((offset - ring->base) % ring->capacity);
    size_t held = (size_t)(ring->end - offset);
    *count = held < ring->capacity - at ? held : ring->capacity - at;
    return ring->memory + at;
}

void ring_forget(struct ring *ring, uint64_t before)
{
    if (before > ring->end)
        before = ring->end;
    if (before > ring->start)
        ring->start = before;
    if (ring->start == ring->end && ring->touched > KEEP_RESIDENT) {
        madvise(ring->memory, ring->touched, MADV_DONTNEED);
        ring->touched = 0;
    }
}
