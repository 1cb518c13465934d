/* The frame parser: bytes in, frames out. Pure: no descriptor, no allocation, so that it can be fuzzed. */
#ifndef FRAME_H
#define FRAME_H

#include "guest.h"

#define FRAME_HEADER 16u
#define FRAME_TRAILER 8u
#define FRAME_WIRE_MAX (FRAME_HEADER + PAYLOAD_MAX + FRAME_TRAILER)
/* Twice the largest frame: a whole one and the beginning of the next always fit. */
#define FRAME_BUFFER (2 * FRAME_WIRE_MAX)
#define HELLO_FIXED 28u
#define NONCE_SIZE 16u

struct frame {
    uint32_t type;
    uint32_t id;
    uint32_t length;
    const uint8_t *payload; /* valid until the next frame_space() */
};

struct frame_parser {
    uint8_t *buffer; /* FRAME_BUFFER bytes */
    size_t start;
    size_t end;
    uint8_t trailer[FRAME_TRAILER];
    bool greeted; /* a HELLO has set the trailer */
};

void frame_reset(struct frame_parser *parser, uint8_t *buffer);

/* Where to read the next bytes to; never empty if frame_next() was called until it answered false. */
uint8_t *frame_space(struct frame_parser *parser, size_t *room);
void frame_commit(struct frame_parser *parser, size_t count);

/* The next whole frame with the right trailer. All others are dropped without a word. */
bool frame_next(struct frame_parser *parser, struct frame *frame);

void frame_header(uint8_t out[FRAME_HEADER], uint32_t type, uint32_t id, uint32_t length);

#endif
