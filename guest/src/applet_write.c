/* A file that appears whole or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "applet.h"
#include "entry.h"
#include "path.h"

struct draft {
    int fd;
    char name[24]; /* "" while it has none */
};

static struct place place;
static struct draft draft;

static void remove_draft(void)
{
    if (draft.name[0])
        unlinkat(place.directory, draft.name, 0);
}

/* TERM comes before KILL: a draft with a name goes with its applet. */
static void on_term(int number)
{
    remove_draft();
    _exit(128 + number);
}

static void begin_draft(void)
{
    draft.fd = openat(place.directory, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (draft.fd >= 0)
        return;
    if (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOENT && errno != EINVAL)
        applet_fail_errno("cannot begin the file");
    signal(SIGTERM, on_term);
    random_name(draft.name);
    draft.fd = openat(place.directory, draft.name, O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC, 0600);
    if (draft.fd < 0) {
        draft.name[0] = 0;
        applet_fail_errno("cannot begin the file");
    }
}

/* Everything but the last 32 bytes goes into the draft; those must be the digest of the rest. */
static void receive(void)
{
    static uint8_t buffer[PIPE_BYTES + SHA256_SIZE];
    uint8_t digest[SHA256_SIZE];
    size_t held = 0, got;
    struct sha256 hash;
    sha256_begin(&hash);
    widen_pipe(0);
    while ((got = read_some(0, buffer + held, sizeof buffer - held))) {
        held += got;
        if (held <= SHA256_SIZE)
            continue;
        /* Of what is held, all but 32 bytes are content for certain. */
        size_t out = held - SHA256_SIZE;
        sha256_add(&hash, buffer, out);
        write_all(draft.fd, buffer, out);
        memmove(buffer, buffer + out, SHA256_SIZE);
        held = SHA256_SIZE;
    }
    sha256_end(&hash, digest);
    if (held != SHA256_SIZE || memcmp(digest, buffer, SHA256_SIZE) != 0)
        applet_fail(BAD_DIGEST, "the bytes do not match their digest");
}

static bool give_name(const char *name)
{
    char from[40];
    snprintf(from, sizeof from, "/proc/self/fd/%d", draft.fd);
    return linkat(AT_FDCWD, from, place.directory, name, AT_SYMLINK_FOLLOW) == 0;
}

/* True: created; false: it replaced what was there. */
static bool publish(bool exclusive)
{
    if (!draft.name[0]) {
        if (give_name(place.name))
            return true;
        if (errno != EEXIST || exclusive)
            applet_fail_errno("cannot create the file");
        char name[24];
        random_name(name);
        if (!give_name(name))
            applet_fail_errno("cannot create the file");
        strcpy(draft.name, name);
    }
    struct place from = {.directory = place.directory};
    strcpy(from.name, draft.name);
    int done = rename_place(&from, &place, true);
    bool created = done == 0;
    if (done < 0 && errno == EEXIST && !exclusive)
        done = rename_place(&from, &place, false);
    if (done < 0)
        applet_fail_errno("cannot put the file in its place");
    return created;
}

static void check_target(bool exclusive)
{
    struct stat status;
    if (fstatat(place.directory, place.name, &status, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno != ENOENT)
            applet_fail_errno("cannot stat");
        return;
    }
    if (exclusive)
        applet_fail(EEXIST, "it exists");
    if (!S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode))
        applet_fail(NOT_REGULAR, "not a regular file");
}

int applet_write(char **argv)
{
    mode_t mode = parse_mode(argv[2]);
    bool exclusive = has_flag(argv[3], 'x'), durable = has_flag(argv[3], 'd');
    place = find_place(open_root(argv[0]), argv[1], has_flag(argv[3], 'p'));
    check_target(exclusive);
    begin_draft();
    applet_on_failure(remove_draft);
    receive();
    struct stat status;
    if (fchmod(draft.fd, mode) < 0 || (durable && fsync(draft.fd) < 0) || fstat(draft.fd, &status) < 0)
        applet_fail_errno("cannot finish the file");
    bool created = publish(exclusive);
    signal(SIGTERM, SIG_DFL);
    applet_on_failure(NULL);
    if (durable) {
        /* The place was opened with O_PATH, which cannot be synced. */
        int directory = openat(place.directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (directory < 0 || fsync(directory) < 0)
            applet_fail_errno("cannot sync the directory");
    }
    status.st_nlink = 1;
    put_text(created ? "c" : "r");
    entry_put(&status, -1, NULL, argv[1]);
    return 0;
}
