/* A tree that appears whole or not at all: built in a staging directory, checked, then moved into its place. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "applet.h"
#include "entry.h"
#include "merge.h"
#include "path.h"
#include "walk.h"

static struct source source;
static uint64_t entries;

/* Where the staging directory is, and its descriptor. */
static int staging_parent = -1;
static char staging_name[24];
static int staging = -1;

static void discard(void)
{
    remove_tree(staging_parent, staging_name);
}

static void begin_staging(int parent)
{
    random_name(staging_name);
    staging_parent = parent;
    if (mkdirat(parent, staging_name, 0700) < 0)
        applet_fail_errno("cannot make the staging directory");
    applet_on_failure(discard);
    staging = open_here(parent, staging_name, O_RDONLY | O_DIRECTORY);
    if (staging < 0)
        applet_fail_errno("cannot open the staging directory");
}

static _Noreturn void refuse(const char *text)
{
    applet_fail(BAD_ARCHIVE, text);
}

/* One field and its NUL into `out`. */
static void take_field(char *out, size_t size)
{
    size_t filled = 0;
    for (;;) {
        size_t length = size - filled;
        const uint8_t *bytes = source_peek(&source, &length);
        if (!bytes)
            refuse("the archive ends early");
        const uint8_t *nul = memchr(bytes, 0, length);
        size_t taken = nul ? (size_t)(nul - bytes) + 1 : length;
        memcpy(out + filled, bytes, taken);
        source_took(&source, taken);
        filled += taken;
        if (nul)
            return;
        if (filled == size)
            refuse("a field is too long");
    }
}

/* Splits off the last name; its directory, in the staging tree and made if need be. No link is followed. */
static int parent_of(char *path, const char **name)
{
    int directory = staging, depth = 0;
    for (char *slash; (slash = strchr(path, '/')); path = slash + 1) {
        *slash = 0;
        if (++depth >= WALK_DEPTH_MAX)
            refuse("too deep");
        if (mkdirat(directory, path, 0755) < 0 && errno != EEXIST)
            applet_fail_errno("cannot make a directory");
        int below = open_here(directory, path, O_RDONLY | O_DIRECTORY);
        if (below < 0)
            refuse("a member lies below something that is no directory");
        if (directory != staging)
            close(directory);
        directory = below;
    }
    *name = path;
    return directory;
}

static void make_directory(int directory, const char *name, const struct entry *entry)
{
    if (mkdirat(directory, name, 0700) < 0 && errno != EEXIST)
        applet_fail_errno("cannot make a directory");
    int fd = open_here(directory, name, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        refuse("a name occurs twice");
    /* Its owner keeps the right to fill and to remove it. */
    if (fchmod(fd, entry->mode | 0700) < 0)
        applet_fail_errno("cannot set a mode");
    close(fd);
}

static void make_file(int directory, const char *name, const struct entry *entry)
{
    int fd = openat(directory, name, O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        refuse("a name occurs twice");
    if (fd < 0)
        applet_fail_errno("cannot create a file");
    for (uint64_t left = entry->size; left;) {
        size_t length = left < sizeof source.buffer ? (size_t)left : sizeof source.buffer;
        const uint8_t *bytes = source_peek(&source, &length);
        if (!bytes)
            refuse("the archive ends early");
        write_all(fd, bytes, length);
        source_took(&source, length);
        left -= length;
    }
    int64_t seconds = entry->mtime_ns / 1000000000, rest = entry->mtime_ns % 1000000000;
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = seconds, .tv_nsec = rest < 0 ? 0 : rest}};
    if (fchmod(fd, entry->mode) < 0 || futimens(fd, times) < 0)
        applet_fail_errno("cannot finish a file");
    close(fd);
}

static void make_link(int directory, const char *name, const char *path)
{
    char target[PATH_MAX];
    take_field(target, sizeof target);
    if (!link_is_let_in(path, target))
        refuse("a link leads out of the tree");
    if (symlinkat(target, directory, name) == 0)
        return;
    if (errno == EEXIST)
        refuse("a name occurs twice");
    applet_fail_errno("cannot make a link");
}

static void take_member(const struct entry *entry)
{
    char clean[PATH_MAX], walked[PATH_MAX];
    const char *name;
    if (!path_normalise(entry->path, clean, sizeof clean) || strcmp(clean, ".") == 0)
        refuse("a path is refused");
    strcpy(walked, clean);
    int directory = parent_of(walked, &name);
    if (strlen(name) >= NAME_SIZE)
        refuse("a name is too long");
    if (entry->type == 'd')
        make_directory(directory, name, entry);
    else if (entry->type == 'f')
        make_file(directory, name, entry);
    else if (entry->type == 'l')
        make_link(directory, name, clean);
    else
        refuse("neither directory, file nor link");
    if (directory != staging)
        close(directory);
    entries++;
}

static void check_digest(void)
{
    uint8_t expected[SHA256_SIZE], given[SHA256_SIZE];
    size_t filled = 0, length;
    struct sha256 hash = source.hash;
    sha256_end(&hash, expected);
    const uint8_t *bytes;
    while (length = sizeof source.buffer, (bytes = source_peek(&source, &length))) {
        if (filled + length > sizeof given)
            refuse("something follows the archive");
        memcpy(given + filled, bytes, length);
        source_took(&source, length);
        filled += length;
    }
    if (filled != sizeof given || memcmp(expected, given, sizeof given) != 0)
        applet_fail(BAD_DIGEST, "the bytes do not match their digest");
}

static void sync_or_fail(int directory)
{
    int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || syncfs(fd) < 0)
        applet_fail_errno("cannot sync");
    close(fd);
}

static void receive(bool durable)
{
    char text[ENTRY_TEXT_MAX];
    struct entry entry;
    sha256_begin(&source.hash);
    for (;;) {
        take_field(text, sizeof text);
        if (!entry_parse(text, &entry))
            refuse("a member cannot be read");
        if (entry.type == 'e')
            break;
        take_member(&entry);
    }
    check_digest();
    /* Once for all, before a name is replaced: a sync of each file takes a turn of the disk each. */
    if (durable)
        sync_or_fail(staging);
}

/* An existing directory is filled from a staging directory inside it: beside it may be another file system. */
static void into_existing(int target, bool durable)
{
    begin_staging(target);
    receive(durable);
    merge_check(staging, target);
    merge_move(staging, target);
    discard();
}

static void as_new(struct place place, mode_t mode, bool durable)
{
    begin_staging(place.directory);
    receive(durable);
    if (fchmod(staging, mode) < 0)
        applet_fail_errno("cannot set the mode");
    if (renameat(place.directory, staging_name, place.directory, place.name) < 0)
        applet_fail_errno("cannot put the tree in its place");
}

int applet_unpack(char **argv)
{
    char clean[PATH_MAX], text[24];
    mode_t mode = parse_mode(argv[2]);
    bool durable = has_flag(argv[3], 'd');
    int root = open_root(argv[0]);
    if (!path_normalise(argv[1], clean, sizeof clean))
        applet_fail(PATH_REFUSED, "the path is refused");
    int target = open_beneath(root, clean, O_RDONLY | O_DIRECTORY);
    if (target < 0 && errno != ENOENT)
        open_path(root, argv[1], O_RDONLY | O_DIRECTORY); /* fails again, in its own words */
    struct place place = {.directory = target};
    if (target < 0)
        place = find_place(root, argv[1], has_flag(argv[3], 'p'));
    if (target >= 0)
        into_existing(target, durable);
    else
        as_new(place, mode, durable);
    applet_on_failure(NULL);
    if (durable)
        sync_or_fail(place.directory);
    snprintf(text, sizeof text, "%llu", (unsigned long long)entries);
    put_text(text);
    return 0;
}
