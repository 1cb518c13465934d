/* The one system call filter of all user code. */
#ifndef SECCOMP_H
#define SECCOMP_H

/* Compiles the table; once, in the guest. */
void seccomp_prepare(void);

/* Installs it for good, in the child; needs no_new_privs. 0 or an errno. */
int seccomp_install(void);

#endif
