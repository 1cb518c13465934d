#include "start_main.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockdown.h"

struct start {
    const struct command *command;
    const char *path; /* the value of PATH in the command's environment */
    char **script;    /* room for argv of /bin/sh */
    struct start_failure *failure;
};

/* Shared with the supervisor, which sleeps until the child has exec'd or failed: so the failure needs no pipe. */
static _Alignas(16) char stack[65536];

static const char *path_of(char **envp)
{
    for (; *envp; envp++)
        if (strncmp(*envp, "PATH=", 5) == 0)
            return *envp + 5;
    return "/usr/local/bin:/usr/bin:/bin";
}

static int run_file(const struct start *start, const char *file)
{
    const struct command *command = start->command;
    execve(file, command->argv, command->envp);
    if (errno != ENOEXEC)
        return errno;
    size_t argc = 0;
    while (command->argv[argc])
        argc++;
    start->script[0] = "/bin/sh";
    start->script[1] = (char *)file;
    memcpy(start->script + 2, command->argv + 1, argc * sizeof(char *));
    execve("/bin/sh", start->script, command->envp);
    return errno;
}

/* As execvpe(): a file that may not be run is passed over, but remembered. */
static int run_from_path(const struct start *start, const char *name)
{
    char file[PATH_MAX];
    int error = ENOENT;
    const char *path = start->path;
    for (;;) {
        size_t length = strcspn(path, ":");
        int written = snprintf(file, sizeof file, "%.*s%s%s", (int)length, path, length ? "/" : "", name);
        if (length < PATH_MAX && written > 0 && (size_t)written < sizeof file) {
            int now = run_file(start, file);
            if (now != ENOENT && now != ENOTDIR && now != EACCES)
                return now;
            if (now == EACCES)
                error = EACCES;
        }
        if (!path[length])
            return error;
        path += length + 1;
    }
}

static int fail(const struct start *start, uint32_t kind, int error)
{
    /* The kernel reports a full process limit only at exec. */
    start->failure->kind = error == EAGAIN ? ENDING_NO_MEANS : kind;
    start->failure->error = error;
    _exit(127);
}

static int child_main(void *argument)
{
    const struct start *start = argument;
    const struct command *command = start->command;
    setsid();
    for (int number = 0; number < 3; number++)
        if (dup2(command->stdio[number], number) < 0)
            return fail(start, ENDING_NO_MEANS, errno);
    umask(022);
    int error = lockdown_user_code();
    if (error)
        return fail(start, ENDING_NO_MEANS, error);
    if (chdir(command->cwd) < 0)
        return fail(start, ENDING_NO_DIRECTORY, errno);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    const char *name = command->argv[0];
    error = strchr(name, '/') ? run_file(start, name) : run_from_path(start, name);
    return fail(start, ENDING_NO_PROGRAM, error);
}

pid_t start_main(const struct command *command, struct start_failure *failure)
{
    size_t argc = 0;
    while (command->argv[argc])
        argc++;
    char **script = malloc((argc + 2) * sizeof(char *));
    struct start start = {command, path_of(command->envp), script, failure};
    *failure = (struct start_failure){ENDING_NO_MEANS, script ? 0 : ENOMEM};
    if (!script)
        return -1;
    pid_t pid = clone(child_main, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &start);
    if (pid < 0)
        failure->error = errno;
    if (failure->error == 0)
        return pid;
    if (pid > 0)
        waitpid(pid, NULL, 0);
    return -1;
}
