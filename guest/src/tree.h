/* Finding and ending all descendants of this process by way of /proc, where no namespace knows them. */
#ifndef TREE_H
#define TREE_H

#include "guest.h"

/* Whether a direct child is spared, with all below it. NULL: none is. */
typedef bool (*tree_spares)(pid_t child);

/* Sends `number` to every descendant. */
void tree_signal(int number, tree_spares spares);

/* Kills all descendants, reaps them and returns how many were running. This process must be their (sub-)reaper. */
uint32_t tree_end(tree_spares spares);

/* The same, but tries no longer than until `deadline` (by `now_us`). Whether none is left; `ended`: see `tree_end`. */
bool tree_end_by(tree_spares spares, uint64_t deadline, uint32_t *ended);

#endif
