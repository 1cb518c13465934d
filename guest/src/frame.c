#include "frame.h"

#include "wire.h"

static const uint8_t magic[4] = {'S', 'T', 'N', '1'};

void frame_reset(struct frame_parser *parser, uint8_t *buffer)
{
    *parser = (struct frame_parser){.buffer = buffer};
}

uint8_t *frame_space(struct frame_parser *parser, size_t *room)
{
    if (parser->start == parser->end) {
        parser->start = parser->end = 0;
    } else if (FRAME_BUFFER - parser->end < FRAME_WIRE_MAX) {
        memmove(parser->buffer, parser->buffer + parser->start, parser->end - parser->start);
        parser->end -= parser->start;
        parser->start = 0;
    }
    *room = FRAME_BUFFER - parser->end;
    return parser->buffer + parser->end;
}

void frame_commit(struct frame_parser *parser, size_t count)
{
    parser->end += count;
}

/* Leaves `start` at the magic, or at what may become one when more bytes come. */
static void skip_to_magic(struct frame_parser *parser)
{
    while (parser->start < parser->end) {
        const uint8_t *at = parser->buffer + parser->start;
        size_t have = parser->end - parser->start;
        if (memcmp(at, magic, have < sizeof magic ? have : sizeof magic) == 0)
            return;
        const uint8_t *next = memchr(at + 1, magic[0], have - 1);
        parser->start = next ? (size_t)(next - parser->buffer) : parser->end;
    }
}

/* A HELLO brings its own trailer, so it ends a session whose nonce its sender never knew. */
static bool trailer_matches(struct frame_parser *parser, const struct frame *frame)
{
    const uint8_t *trailer = frame->payload + frame->length;
    if (frame->type == FRAME_HELLO) {
        if (frame->length < HELLO_FIXED || memcmp(trailer, frame->payload, FRAME_TRAILER) != 0)
            return false;
        memcpy(parser->trailer, trailer, FRAME_TRAILER);
        parser->greeted = true;
        return true;
    }
    return parser->greeted && memcmp(trailer, parser->trailer, FRAME_TRAILER) == 0;
}

bool frame_next(struct frame_parser *parser, struct frame *frame)
{
    for (;;) {
        skip_to_magic(parser);
        size_t have = parser->end - parser->start;
        if (have < FRAME_HEADER)
            return false;
        const uint8_t *at = parser->buffer + parser->start;
        *frame = (struct frame){get32(at + 4), get32(at + 8), get32(at + 12), at + FRAME_HEADER};
        if (frame->length > PAYLOAD_MAX) {
            parser->start += sizeof magic;
            continue;
        }
        size_t whole = FRAME_HEADER + frame->length + FRAME_TRAILER;
        if (have < whole)
            return false;
        /* A bad frame is skipped whole: looking for magic inside it would execute what a user uploaded. */
        parser->start += whole;
        if (trailer_matches(parser, frame))
            return true;
    }
}

void frame_header(uint8_t out[FRAME_HEADER], uint32_t type, uint32_t id, uint32_t length)
{
    memcpy(out, magic, sizeof magic);
    put32(put32(put32(out + 4, type), id), length);
}
