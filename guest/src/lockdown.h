/* Turning a forked child into user code: its user, no capability, limits, seccomp. */
#ifndef LOCKDOWN_H
#define LOCKDOWN_H

#include "guest.h"

/* Once, at the start of the guest. */
void lockdown_prepare(void);

/* The guest's children are the first choice of the OOM killer; the guest itself is not. Around each fork. */
void oom_expose(bool exposed);

/* In the child. 0 or an errno. Irreversible from its first step on. */
int lockdown_user_code(void);
/* The same for an applet: our own code, so without the process limit and never readable by the user. */
int lockdown_applet(void);
/* A supervisor needs no more than to signal the user's processes. */
void lockdown_supervisor(void);

#endif
