/* Putting a finished staging directory in its place. */
#ifndef MERGE_H
#define MERGE_H

/* Whether all below `from` can go into `into`: directories meet directories, files replace files and links. Ends the
 * applet where not; changes nothing. */
void merge_check(int from, int into);

/* Moves it there, name by name. */
void merge_move(int from, int into);

#endif
