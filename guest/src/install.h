#ifndef INSTALL_H
#define INSTALL_H

/* Exit code: 0 when DIR/guest is this very program and safe on the disk. */
int install_main(int argc, char **argv);

#endif
