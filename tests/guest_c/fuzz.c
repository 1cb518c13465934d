/*
 * Deterministic fuzzing of the pure parts of the guest: fuzz WHAT SEED ITERATIONS. Built with ASan and UBSan by
 * test_fuzz.py. A broken promise aborts; a broken memory access is found by the sanitizers.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entry.h"
#include "frame.h"
#include "path.h"
#include "record.h"
#include "ring.h"
#include "sha256.h"
#include "sha256_cpu.h"
#include "walk.h"
#include "wire.h"

static uint64_t state;

static uint64_t random64(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545F4914F6CDD1Dull;
}

static size_t below(size_t limit)
{
    return limit ? (size_t)(random64() >> 11) % limit : 0;
}

#define promise(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition);                                    \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* A growing stream of bytes. */
static uint8_t *stream;
static size_t stream_length;

static void append(const void *bytes, size_t length)
{
    stream = realloc(stream, stream_length + length + 1);
    if (length)
        memcpy(stream + stream_length, bytes, length);
    stream_length += length;
}

static void append_zeros(size_t length)
{
    stream = realloc(stream, stream_length + length + 1);
    memset(stream + stream_length, 0, length);
    stream_length += length;
}

static void append_frame(uint32_t type, uint32_t id, size_t length, const uint8_t nonce[16])
{
    static uint8_t payload[PAYLOAD_MAX];
    uint8_t header[FRAME_HEADER];
    for (size_t i = 0; i < length; i += 1 + below(9))
        payload[i] = below(3) ? (uint8_t)random64() : "STN1"[i % 4];
    if (type == FRAME_HELLO)
        memcpy(payload, nonce, NONCE_SIZE);
    frame_header(header, type, id, (uint32_t)length);
    append(header, sizeof header);
    append(payload, length);
    append(nonce, FRAME_TRAILER);
}

struct digest {
    uint64_t value;
    uint64_t count;
    uint32_t last_id;
};

/* All frames of the stream, fed in pieces of at most `piece` bytes. */
static struct digest parse_stream(size_t piece)
{
    struct digest digest = {.value = 14695981039346656037ull};
    struct frame_parser parser;
    struct frame frame;
    uint8_t *buffer = malloc(FRAME_BUFFER);
    frame_reset(&parser, buffer);
    for (size_t at = 0; at < stream_length;) {
        size_t room, take = 1 + below(piece);
        uint8_t *space = frame_space(&parser, &room);
        promise(room > 0);
        take = take < room ? take : room;
        take = take < stream_length - at ? take : stream_length - at;
        memcpy(space, stream + at, take);
        frame_commit(&parser, take);
        at += take;
        while (frame_next(&parser, &frame)) {
            promise(frame.length <= PAYLOAD_MAX);
            digest.count++;
            digest.last_id = frame.id;
            digest.value = (digest.value ^ frame.type ^ ((uint64_t)frame.id << 32)) * 1099511628211ull;
            for (uint32_t i = 0; i < frame.length; i++)
                digest.value = (digest.value ^ frame.payload[i]) * 1099511628211ull;
        }
    }
    free(buffer);
    return digest;
}

static void new_nonce(uint8_t nonce[16])
{
    put64(put64(nonce, random64()), random64());
}

static void append_noise(const uint8_t nonce[16])
{
    size_t before = stream_length;
    uint8_t byte[64];
    switch (below(5)) {
    case 0:
        append_zeros(below(100));
        break;
    case 1:
        for (size_t n = below(64); n; n--)
            append((byte[0] = (uint8_t)random64(), byte), 1);
        break;
    case 2:
        append("STN1STN1STNSTN1", below(16));
        break;
    case 3: /* half a frame */
        append_frame(FRAME_STDIN, 9, below(3) ? below(100) : below(PAYLOAD_MAX), nonce);
        stream_length = before + below(stream_length - before);
        break;
    default: /* a frame of another session */
        new_nonce(byte);
        append_frame(FRAME_START, 8, below(50), byte);
    }
}

/* Whatever came before: zeros and a HELLO bring the next frame through, and chunking changes nothing. */
static void fuzz_frames(void)
{
    uint8_t nonce[16];
    stream_length = 0;
    new_nonce(nonce);
    append_frame(FRAME_HELLO, 0, HELLO_FIXED + below(50), nonce);
    for (size_t n = below(6); n; n--) {
        if (below(2))
            append_noise(nonce);
        append_frame(1 + (uint32_t)below(12), (uint32_t)random64(), below(4) ? below(200) : below(PAYLOAD_MAX + 1), nonce);
    }
    append_noise(nonce);
    append_zeros(FRAME_WIRE_MAX);
    new_nonce(nonce);
    append_frame(FRAME_HELLO, 0, HELLO_FIXED, nonce);
    append_frame(FRAME_START, 4711, below(100), nonce);
    struct digest whole = parse_stream(FRAME_BUFFER), pieces = parse_stream(1 + below(300));
    promise(whole.count >= 3);
    promise(whole.last_id == 4711);
    promise(whole.count == pieces.count && whole.value == pieces.value);
}

/* Exactly as large as the bytes: a read behind them is seen. */
static void fuzz_record(void)
{
    size_t length = below(200);
    uint8_t *bytes = malloc(length + 1);
    for (size_t i = 0; i < length; i++)
        bytes[i] = below(3) ? (uint8_t)below(3) : (uint8_t)random64();
    if (length >= 36 && below(4)) {
        memset(bytes, 0, 36);
        put32(bytes + 28, 1 + (uint32_t)below(5));
        put32(bytes + 32, (uint32_t)below(5));
        for (size_t i = 36; i < length; i++)
            bytes[i] = below(4) ? 'a' : 0;
    }
    bytes = realloc(bytes, length ? length : 1);
    struct record record;
    if (record_parse(&record, bytes, length) == 0) {
        size_t used = strlen(record.cwd) + 1, argc = 0;
        for (char **word = record.argv; *word; word++, argc++)
            used += strlen(*word) + 1;
        for (char **word = record.envp; *word; word++)
            used += strlen(*word) + 1;
        promise(used + 36 == length);
        promise(argc == record.argc && record.argv[0][0]);
        promise(record.ring_bytes >= 4096 && record.ring_bytes <= 16u << 20);
        record_free(&record);
    }
    free(bytes);
}

static void random_text(char *text, size_t size, const char *letters)
{
    size_t length = below(size);
    for (size_t i = 0; i < length; i++)
        text[i] = letters[below(strlen(letters))];
    text[length] = 0;
}

/* How deep a path leads, and whether it ever climbs above its start. */
static bool climbs_out(const char *path, long depth)
{
    char copy[256];
    strcpy(copy, path);
    for (char *part = strtok(copy, "/"); part; part = strtok(NULL, "/")) {
        if (strcmp(part, "..") == 0 && --depth < 0)
            return true;
        depth += strcmp(part, "..") != 0 && strcmp(part, ".") != 0;
    }
    return false;
}

static void fuzz_paths(void)
{
    char path[64], other[64], clean[64], twice[64];
    random_text(path, sizeof path, "ab./");
    random_text(other, sizeof other, "ab./");
    size_t size = 1 + below(sizeof clean);
    if (path_normalise(path, clean, size)) {
        promise(strlen(clean) < size);
        promise(path_normalise(clean, twice, sizeof twice) && strcmp(clean, twice) == 0);
        promise(clean[0] != '/' && !climbs_out(clean, 0) && !strstr(clean, "//"));
        long depth = 0;
        for (const char *at = clean; (at = strchr(at, '/')); at++)
            depth++;
        if (link_is_let_in(clean, other))
            promise(other[0] == '/' || (other[0] && !climbs_out(other, depth)));
        else
            promise(other[0] != '/');
    }
    int order = path_compare(path, other);
    promise((order == 0) == (strcmp(path, other) == 0));
    promise((order < 0) == (path_compare(other, path) > 0));
}

static void fuzz_entries(void)
{
    char text[128];
    struct entry entry;
    random_text(text, sizeof text, "fdloe  0123456789-x/.");
    if (below(3) == 0)
        snprintf(text, sizeof text, "%c %llo %llu %lld %u %s", "fdloe"[below(5)], (unsigned long long)below(010000),
                 (unsigned long long)random64() >> below(64), (long long)random64() >> below(64), (unsigned)below(9),
                 below(5) ? "a/b" : "");
    if (!entry_parse(text, &entry) || entry.type == 'e')
        return;
    promise(strchr("fdlo", entry.type) && entry.mode <= 0777 && entry.path[0]);
    promise(entry.size <= INT64_MAX && entry.path > text && entry.path < text + strlen(text));
}

static uint8_t byte_at(uint64_t offset)
{
    return (uint8_t)((offset * 0x9E3779B97F4A7C15ull) >> 56);
}

/* A ring always holds the bytes that were put at its offsets. */
static void fuzz_ring(void)
{
    struct ring rings[2];
    promise(rings_open(rings, 4096 + (uint32_t)below(200000)));
    struct ring *ring = &rings[below(2)];
    for (int n = 0; n < 50; n++) {
        size_t room, count;
        uint8_t *space = ring_space(ring, &room);
        promise(room <= ring_room(ring) && (room > 0) == (ring_room(ring) > 0));
        room = below(room + 1);
        for (size_t i = 0; i < room; i++)
            space[i] = byte_at(ring->end + i);
        ring_commit(ring, room);
        for (uint64_t at = ring->start; at < ring->end; at += count) {
            const uint8_t *bytes = ring_at(ring, at, &count);
            promise(count > 0);
            for (size_t i = 0; i < count; i++)
                promise(bytes[i] == byte_at(at + i));
        }
        ring_forget(ring, ring->start + below(2 * (size_t)(ring->end - ring->start) + 2));
        promise(ring->start <= ring->end);
    }
    rings_close(rings);
}

/* The processor's own instructions and the portable code agree, from any state and at any alignment. */
static void fuzz_sha256(void)
{
    static uint8_t bytes[64 * 9 + 16];
    uint32_t fast[8], plain[8];
    sha256_blocks *by_cpu = sha256_by_cpu();
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)random64();
    for (int i = 0; i < 8; i++)
        fast[i] = plain[i] = (uint32_t)random64();
    size_t start = below(16), count = below(10);
    sha256_portable(plain, bytes + start, count);
    (by_cpu ? by_cpu : sha256_portable)(fast, bytes + start, count);
    promise(memcmp(fast, plain, sizeof fast) == 0);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } targets[] = {{"frames", fuzz_frames},   {"record", fuzz_record}, {"paths", fuzz_paths},
                   {"entries", fuzz_entries}, {"ring", fuzz_ring},     {"sha256", fuzz_sha256}};
    if (argc != 4)
        return 2;
    state = strtoull(argv[2], NULL, 10) * 2 + 1;
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        if (strcmp(targets[i].name, argv[1]) != 0)
            continue;
        for (unsigned long n = strtoul(argv[3], NULL, 10); n; n--)
            targets[i].run();
        free(stream);
        return 0;
    }
    return 2;
}
