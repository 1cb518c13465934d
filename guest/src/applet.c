#include "applet.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockdown.h"

static const struct {
    const char *name;
    int arguments;
    int (*run)(char **argv);
} applets[] = {
    {"stat", 3, applet_stat},     {"list", 5, applet_list},     {"read", 4, applet_read},   {"write", 4, applet_write},
    {"mkdir", 4, applet_mkdir},   {"rename", 5, applet_rename}, {"remove", 3, applet_remove}, {"chmod", 3, applet_chmod},
    {"pack", 3, applet_pack},     {"unpack", 4, applet_unpack}, {"space", 1, applet_space},
};

static void (*undo_begun)(void);

void applet_on_failure(void (*undo)(void))
{
    undo_begun = undo;
}

_Noreturn void applet_fail(int code, const char *text)
{
    static int first_code;
    char line[160];
    /* Undoing has failed, too: the first failure is the one to tell. */
    if (first_code)
        _exit(first_code);
    first_code = code;
    /* No path in it: the host knows what it asked for, and a path of the box may contain anything. */
    int length = snprintf(line, sizeof line, "%s\n", text);
    write_all(2, line, (size_t)length);
    if (undo_begun)
        undo_begun();
    _exit(code);
}

_Noreturn void applet_fail_errno(const char *text)
{
    char line[128];
    int error = errno;
    snprintf(line, sizeof line, "%s: %s", text, strerror(error));
    applet_fail(error, line);
}

bool has_flag(const char *flags, char flag)
{
    return strchr(flags, flag) != NULL;
}

int applet_run(char **argv)
{
    int given = 0;
    while (argv[given + 1])
        given++;
    int error = lockdown_applet();
    if (error)
        applet_fail(error, "cannot become the user");
    umask(0); /* modes are exact */
    signal(SIGXFSZ, SIG_IGN); /* a file over its size limit is EFBIG, an answer, not a death */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max; /* a deep tree takes a few for each level */
        setrlimit(RLIMIT_NOFILE, &files);
    }
    for (size_t i = 0; i < sizeof applets / sizeof applets[0]; i++) {
        if (strcmp(applets[i].name, argv[0]) != 0)
            continue;
        if (given != applets[i].arguments)
            applet_fail(EINVAL, "wrong number of arguments");
        int code = applets[i].run(argv + 1);
        put_flush();
        return code;
    }
    applet_fail(ENOSYS, "no such applet");
}
