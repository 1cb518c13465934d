/* Starting the main process of a command. */
#ifndef START_MAIN_H
#define START_MAIN_H

#include "supervise.h"

struct start_failure {
    uint32_t kind; /* an ending_kind */
    int error;
};

/* Returns when the program runs: its pid; or -1, and why not. Called once in the life of a supervisor. */
pid_t start_main(const struct command *command, struct start_failure *failure);

#endif
