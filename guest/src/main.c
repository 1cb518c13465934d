/* stn-guest: PID 1 of a box. `serve` speaks docs/guest-protocol.md, `launch` makes the box around it,
 * `install` puts the program where engines find it. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fds.h"
#include "guest.h"
#include "install.h"
#include "launch.h"
#include "lockdown.h"
#include "loop.h"
#include "process.h"
#include "session.h"

/* Numbers 0 to 2 must be taken, or a pipe of the guest would become somebody's stdio. */
static void fill_stdio(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    while (fd >= 0 && fd < 3);
    if (fd >= 3)
        close(fd);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static int serve(int argc, char **argv)
{
    fill_stdio();
    fds_inherit_none();
    if (!options_parse(argc, argv))
        return 2;
    if (!places_prepare())
        return 1;
    loop_open();
    lockdown_prepare();
    if (!probe_run())
        return 1;
    if (!session_open()) {
        complain("the given descriptor cannot be used", 0);
        return 1;
    }
    while (!loop_asked_to_end() && !session_gone()) {
        uint64_t deadline = processes_tick();
        loop_turn(earlier(deadline, session_tick(now_us())));
        if (loop_child_changed())
            processes_reap();
        output_pump();
    }
    processes_end_all();
    return 0;
}

int main(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "";
    if (strcmp(word, "serve") == 0)
        return serve(argc - 1, argv + 1);
    if (strcmp(word, "launch") == 0)
        return launch_main(argc - 1, argv + 1);
    if (strcmp(word, "install") == 0)
        return install_main(argc - 1, argv + 1);
    if (strcmp(word, "--version") == 0) {
        static const char line[] = "stn-guest " GUEST_VERSION "\n";
        return write(1, line, sizeof line - 1) < 0;
    }
    complain("usage: stn-guest serve|launch|install|--version", 0);
    return 2;
}
