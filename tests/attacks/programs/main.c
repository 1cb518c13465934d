#include "attack.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static const struct {
    const char *id;
    attack *run;
} TABLE[] = {
    {"K01", mounts}, {"K02", namespaces}, {"K03", processes}, {"K04", privileged}, {"K05", rings}, {"K06", clocks},
    {"K07", keys}, {"K08", settings}, {"K10", devices}, {"K13", other_calls}, {"K14", readable}, {"K16", contact},
    {"K12", locks}, {"N01", metadata}, {"N02", machine}, {"N03", loopback}, {"N05", name_servers}, {"N04", network},
    {"R11", zombies}, {"R12", descriptors}, {"R14", signals}, {"R16", threads},
    {"F02", outside}, {"K09", services}, {"R01", crowd}, {"R02", memory}, {"R08", daemonised}, {"R09", deaf},
    {"R10", daemonised},
};

static const char *id;
static bool any_harm, reported;
static int tries;

static const char *name_of(int number)
{
    static char other[16];
    switch (number) {
#define NAME(x) case x: return #x
        NAME(EPERM); NAME(ENOENT); NAME(ESRCH); NAME(EINTR); NAME(EIO); NAME(ENXIO); NAME(EBADF); NAME(EAGAIN);
        NAME(ENOMEM); NAME(EACCES); NAME(EFAULT); NAME(EBUSY); NAME(EEXIST); NAME(ENODEV); NAME(ENOTDIR); NAME(EISDIR);
        NAME(EINVAL); NAME(ENFILE); NAME(EMFILE); NAME(ENOSPC); NAME(EROFS); NAME(ENOSYS); NAME(ENOEXEC); NAME(ENOTSUP);
        NAME(EAFNOSUPPORT); NAME(EPROTONOSUPPORT); NAME(ESOCKTNOSUPPORT); NAME(ECONNREFUSED); NAME(EADDRNOTAVAIL);
        NAME(ENETUNREACH); NAME(ENOKEY); NAME(EUSERS); NAME(E2BIG); NAME(EADDRINUSE); NAME(ELOOP); NAME(EKEYREVOKED); NAME(ENOTTY); NAME(EHOSTUNREACH); NAME(ETIMEDOUT);
#undef NAME
    }
    snprintf(other, sizeof other, "%d", number);
    return other;
}

static void line(const char *what, const char *error, long result, bool harm)
{
    if (tries++ == 0) printf("{\"id\": \"%s\", \"tries\": [", id);
    else printf(", ");
    printf("{\"what\": \"%s\", \"errno\": ", what);
    if (error) printf("\"%s\"", error);
    else printf("null");
    printf(", \"result\": %ld, \"harm\": %s}", result, harm ? "true" : "false");
    any_harm |= harm;
}

static const char *error_of(long result) { return result < 0 ? name_of(errno) : NULL; }

static bool refused(long result)
{
    return result < 0 && (errno == EPERM || errno == EACCES || errno == ENOSYS || errno == ENOTSUP || errno == ENOTTY);
}

void call(const char *what, long result)
{
    bool harm = !refused(result);
    line(what, error_of(result), result, harm);
}

void call_limited(const char *what, long result)
{
    bool none = result < 0 && (errno == ENOSPC || errno == EAFNOSUPPORT || errno == EPROTONOSUPPORT ||
                               errno == ESOCKTNOSUPPORT || errno == ENOENT || errno == EROFS || errno == ENODEV);
    bool harm = !refused(result) && !none;
    line(what, error_of(result), result, harm);
}

void opened(const char *path, int flags)
{
    int fd = open(path, flags | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    line(path, error_of(fd), fd < 0 ? -1 : 0, fd >= 0);
    if (fd >= 0) close(fd);
}

void told(const char *what, long result) { line(what, error_of(result), result, false); }

void judged(const char *what, long result, bool harm) { line(what, error_of(result), result, harm); }

void in_child(const char *what, long (*body)(void))
{
    int answer[2];
    long got[2] = {-1, 0};
    if (pipe(answer) != 0) abort();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        got[0] = body();
        got[1] = errno;
        ssize_t written = write(answer[1], got, sizeof got);
        _exit(written == sizeof got ? 0 : 1);
    }
    close(answer[1]);
    bool whole = read(answer[0], got, sizeof got) == sizeof got;
    close(answer[0]);
    waitpid(child, NULL, 0);
    if (!whole) {
        line(what, "a signal", -1, false);
        return;
    }
    errno = (int)got[1];
    call(what, got[0]);
}

bool mild(int argc, char **argv) { return argc > 0 && strcmp(argv[0], "mild") == 0; }

void report(void)
{
    if (reported) return;
    reported = true;
    printf("], \"harm\": %s}\n", any_harm ? "true" : "false");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof TABLE / sizeof TABLE[0]; i++) {
        if (strcmp(argv[1], TABLE[i].id) != 0) continue;
        id = argv[1];
        TABLE[i].run(argc - 2, argv + 2);
        report();
        return 0;
    }
    fprintf(stderr, "attack: no such attack\n");
    return 2;
}
