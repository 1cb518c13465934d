#include "record.h"

#include <errno.h>
#include <stdlib.h>

#include "wire.h"

#define FIXED 36u
#define RING_DEFAULT (1u << 20)
#define RING_MIN 4096u
#define RING_MAX (16u << 20)

struct cursor {
    uint8_t *at;
    size_t left;
};

static char *take_string(struct cursor *cursor)
{
    uint8_t *nul = memchr(cursor->at, 0, cursor->left);
    if (!nul)
        return NULL;
    char *string = (char *)cursor->at;
    cursor->left -= (size_t)(nul + 1 - cursor->at);
    cursor->at = nul + 1;
    return string;
}

static bool take_strings(struct cursor *cursor, char **out, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!(out[i] = take_string(cursor)))
            return false;
    out[count] = NULL;
    return true;
}

static uint32_t ring_size(uint32_t asked)
{
    if (asked == 0)
        return RING_DEFAULT;
    return asked < RING_MIN ? RING_MIN : asked > RING_MAX ? RING_MAX : asked;
}

int record_parse(struct record *record, uint8_t *bytes, size_t length)
{
    *record = (struct record){0};
    if (length < FIXED)
        return EINVAL;
    record->flags = get32(bytes);
    record->on_full = get32(bytes + 4);
    record->timeout_ms = get32(bytes + 8);
    record->grace_ms = get32(bytes + 12);
    record->ring_bytes = ring_size(get32(bytes + 16));
    record->output_limit = get64(bytes + 20);
    record->argc = get32(bytes + 28);
    uint32_t envc = get32(bytes + 32);
    struct cursor cursor = {bytes + FIXED, length - FIXED};
    /* Every string takes a byte, so counts that pass this cannot ask for a large allocation. */
    if (record->argc == 0 || record->argc > cursor.left || envc > cursor.left || record->on_full > ON_FULL_KILL ||
        record->flags > (RECORD_STDIN | RECORD_APPLET))
        return EINVAL;
    if (!(record->cwd = take_string(&cursor)))
        return EINVAL;
    record->argv = malloc(((size_t)record->argc + envc + 2) * sizeof(char *));
    if (!record->argv)
        return ENOMEM;
    record->envp = record->argv + record->argc + 1;
    if (!take_strings(&cursor, record->argv, record->argc) || !take_strings(&cursor, record->envp, envc) ||
        cursor.left != 0 || record->argv[0][0] == 0) {
        record_free(record);
        return EINVAL;
    }
    return 0;
}

void record_free(struct record *record)
{
    free(record->argv);
    record->argv = NULL;
}
