/* The start record of docs/guest-protocol.md, parsed. Pure. */
#ifndef RECORD_H
#define RECORD_H

#include "guest.h"

#define RECORD_MAX (2u << 20)
#define RECORD_STDIN 1u
#define RECORD_APPLET 2u

struct record {
    uint32_t flags;
    uint32_t on_full;
    uint32_t timeout_ms;
    uint32_t grace_ms;
    uint32_t ring_bytes; /* already within its bounds */
    uint64_t output_limit;
    uint32_t argc;
    char *cwd;
    char **argv; /* NULL-terminated; argv and envp are one allocation, freed by record_free() */
    char **envp;
};

/* 0, or EINVAL, or ENOMEM. The strings point into `bytes`, which must outlive the record. */
int record_parse(struct record *record, uint8_t *bytes, size_t length);
void record_free(struct record *record);

#endif
